"""Quantised releases: every byte of codes and scales comes back out of the FTW folder."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from ftengine.convert.convert import run_job
from ftengine.convert.local import convert_folder, local_job, plan_folder
from ftengine.loader.ftw import FtwModel, FtwPart
from ftengine.quant import fp8, mxfp4, nvfp4, panel32
from tests.fakes.quantised import KINDS, SIZES, build_quantised
from tests.fakes.windows import WindowFolder, WindowLink, job_line, start_converter, talk
from tests.ftengine.convert.test_lossless import raw_bytes

STORED = {"F32": "f32", "BF16": "bf16", "F8_E8M0": "e8m0", "F8_E4M3": "e4m3"}
ENDINGS = (".weight_scale_inv", ".weight_scale", ".scale")
FACTORS = (".weight_scale_2", ".weight_global_scale")


def read_source(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """name -> dtype, shape and bytes of every tensor, read by hand."""
    found = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        for name, item in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + at for at in item["data_offsets"])
                found[name] = (item["dtype"], tuple(item["shape"]), data[start:end])
    return found


def companions(source: dict[str, tuple[str, tuple[int, ...], bytes]], module: str) -> list[bytes]:
    """Codes, scales and, where there is one, the factor of a module."""
    codes = next(module + end for end in (".weight", ".weight_packed") if module + end in source)
    scale = next(module + end for end in ENDINGS if module + end in source)
    factors = [source[module + end][2] for end in FACTORS if module + end in source]
    return [source[codes][2], source[scale][2], *factors]


def int4_tensors(rows: np.ndarray) -> list[bytes]:
    """Codes and bfloat16 scales of groups of 32 out of q4_0 rows, by hand."""
    blocks = rows.reshape(-1, 18)
    wide = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    quants = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    codes = quants[:, 0::2] | quants[:, 1::2] << 4
    return [codes.tobytes(), (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes()]


def split(part: FtwPart, rows: np.ndarray, stored: tuple[str, int]) -> list[bytes]:
    """The release's own tensors out of rows. stored: dtype and number of its scales."""
    if part.format == "q4_0":
        return int4_tensors(rows)
    if part.format == "mxfp4":
        return [item.tobytes() for item in mxfp4.split_rows(rows)]
    if part.format.startswith("nvfp4"):
        codes, scales, factors = nvfp4.split_rows(rows)
        assert len(set(factors.view(np.uint32).tolist())) == 1
        return [codes.tobytes(), scales.tobytes(), factors[:1].tobytes()]
    if part.format == "fp8_block_e8m0":
        return [item.tobytes() for item in fp8.split_block_e8m0_rows(rows, part.shape[1])]
    block = part.format == "fp8_block"
    codes, wide = (
        fp8.split_block_rows(rows, part.shape[1]) if block else fp8.split_tensor_rows(rows)
    )
    bits = wide.reshape(-1)[: stored[1]].view(np.uint32)
    scales = (bits >> 16).astype(np.uint16) if stored[0] == "BF16" else bits
    return [codes.tobytes(), scales.tobytes()]


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("kind", list(KINDS))
def test_unpacked_experts_are_the_release_bytes(kind: str, num_shards: int, tmp_path: Path) -> None:
    build_quantised("qwen3_moe", tmp_path, kind, num_shards=num_shards)
    source = read_source(tmp_path / "q")
    convert_folder(tmp_path / "q", tmp_path / "ftw")
    compared = 0
    with FtwModel.open(tmp_path / "ftw", check="checksums") as model:
        for layer, bank in enumerate(model.index.banks):
            rows = raw_bytes(model, bank).reshape(bank.num_experts, bank.row_bytes)
            for expert, row in enumerate(rows):
                for part in bank.parts:
                    data = row[part.offset : part.offset + part.bytes]
                    count, cols = part.shape
                    if part.name == "down":
                        found = {"down": panel32.unpack(part.format, data, count, cols)}
                    else:
                        pair = panel32.unpack_pair(part.format, data, count // 2, cols)
                        found = dict(zip(("gate", "up"), pair, strict=True))
                    for name, unpacked in found.items():
                        module = f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj"
                        expected = companions(source, module)
                        end = next(end for end in ENDINGS if module + end in source)
                        dtype, shape, _ = source[module + end]
                        stored = (dtype, int(np.prod(shape)))
                        assert split(part, unpacked, stored) == expected, module
                        compared += 1
    assert compared == 3 * SIZES.num_experts * SIZES.layers


@pytest.mark.parametrize("kind", list(KINDS))
def test_dense_regions_are_the_release_bytes(kind: str, tmp_path: Path) -> None:
    build_quantised("llama", tmp_path, kind)
    source = read_source(tmp_path / "q")
    convert_folder(tmp_path / "q", tmp_path / "ftw")
    with FtwModel.open(tmp_path / "ftw", check="checksums") as model:
        tensors = {item.name: item for item in model.index.tensors}
        for ours, theirs in (("attn.q", "self_attn.q_proj"), ("mlp.down", "mlp.down_proj")):
            entry = tensors["layers.1." + ours]
            names = [entry.name, entry.scales, *([entry.factor] if entry.factor else [])]
            found = [raw_bytes(model, tensors[name]).tobytes() for name in names]
            module = "model.layers.1." + theirs
            assert found == companions(source, module)
            down = (SIZES.hidden, SIZES.inter)
            heads = (SIZES.heads * SIZES.head_dim, SIZES.hidden)
            assert entry.shape == (down if theirs == "mlp.down_proj" else heads)
            end = next(end for end in ENDINGS if module + end in source)
            kept = "e8m0" if kind == "mxfp4_ct" else STORED[source[module + end][0]]
            assert tensors[entry.scales].format == kept


@pytest.mark.parametrize("kind", ["fp8_block", "nvfp4_modelopt", "dsv4"])
def test_scales_far_from_their_codes_wait_in_the_staging_file(kind: str, tmp_path: Path) -> None:
    """Files laid out by dtype, and several: scales come long before their codes."""
    build_quantised("mixtral", tmp_path, kind, num_shards=4)
    expected = convert_folder(tmp_path / "q", tmp_path / "expected")
    job, paths = local_job(tmp_path / "q", tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 8_000)
    largest = 0

    def watch(link: WindowLink) -> None:
        nonlocal largest
        sizes = [path.stat().st_blocks * 512 for path in (job.target / "work").glob("stage-*")]
        largest = max(largest, sum(sizes))

    class Watched(WindowLink):
        def send(self, message: object) -> None:
            watch(self)
            super().send(message)  # type: ignore[arg-type]

    assert run_job(job, Watched(windows)) == expected
    plan = plan_folder(tmp_path / "q")
    assert 0 < largest <= plan["peak_disk_bytes"] - plan["disk_bytes"]
    assert windows.alive == {}


@pytest.mark.parametrize("point", ["convert.after_tensor:40=kill", "convert.before_index=kill"])
def test_a_killed_conversion_of_a_quantised_release_resumes(point: str, tmp_path: Path) -> None:
    build_quantised("qwen3_moe", tmp_path, "nvfp4_ct", num_shards=2)
    expected = convert_folder(tmp_path / "q", tmp_path / "expected")
    job, paths = local_job(tmp_path / "q", tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 20_000)
    line = job_line("safetensors", paths, job.target)
    messages = talk(start_converter(faults=point), line, windows)
    assert not any("result" in message for message in messages)
    assert talk(start_converter(), line, windows)[-1]["result"] == expected
    FtwModel.open(job.target, check="checksums").close()


def test_the_plan_counts_what_a_forecast_needs(tmp_path: Path) -> None:
    build_quantised("qwen3_moe", tmp_path, "mxfp4_ct")
    plan = plan_folder(tmp_path / "q")
    experts = SIZES.layers * SIZES.num_experts
    assert plan["num_layers"] == SIZES.layers
    assert (plan["num_experts"], plan["num_experts_per_tok"]) == (SIZES.num_experts, SIZES.top_k)
    assert plan["expert_bytes"] == experts * plan["expert_row_bytes"]
    assert plan["dense_bytes"] + plan["expert_bytes"] == plan["load_bytes"]
    # 17 bytes for 32 elements, and at most a page and the filled-up last panels more.
    elements = 3 * SIZES.hidden * SIZES.expert_inter
    assert 17 / 32 * elements <= plan["expert_row_bytes"] < 17 / 32 * elements * 1.3 + 4096
    weights = plan["details"]["parameter_count"]
    values = build_quantised("qwen3_moe", tmp_path / "again", "mxfp4_ct")
    assert weights == sum(item.size for item in values.values())

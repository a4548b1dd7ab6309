"""GGUF files of GGML type 40 become the nvfp4 of an FTW: same values, other places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ftengine.convert.convert import read_plan
from ftengine.convert.local import LocalLink, convert_folder, local_job
from ftengine.convert.pieces import covers_of
from ftengine.convert.window import KeptRanges, Windows
from ftengine.errors import LoadError
from ftengine.loader.ftw import FtwModel
from ftengine.loader.joined import Scales, joined_rows
from ftengine.quant import nvfp4
from tests.fakes import tiny_gguf
from tests.fakes import tiny_models as tiny
from tests.ftengine.convert.test_lossless import expert_values, raw_bytes
from tests.ftengine.parity.tiny_engines import greedy, load_engine, random_ids

DENSE = {"matrix": "nvfp4", "embed": "q8_0"}
EXPERTS = {"matrix": "q8_0", "experts": "nvfp4"}
KINDS = [("llama", "llama", DENSE), ("qwen3moe", "qwen3_moe", EXPERTS | {"matrix": "nvfp4"})]


def build(path: Path, arch: str, family: str, types: dict[str, str]) -> tiny.TinySizes:
    sizes = tiny.sizes_of(family, inter=128, expert_inter=64)
    tiny.build_tiny_gguf(arch, path, types={"embed": "q8_0"} | types, sizes=sizes, family=family)
    return sizes


def reference(path: Path) -> dict[str, Any]:
    """Weights as the gguf package reads them, times their factors."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    found = {}
    for name, tensor in tensors.items():
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape([int(size) for size in tensor.shape[::-1]])
        factor = tensors.get(name.replace(".weight", ".scale"))
        if name.endswith(".weight") and factor is not None:
            values = values * factor.data.reshape(-1, *[1] * (values.ndim - 1))
        found[name] = values
    return found


def dense_values(model: FtwModel, name: str) -> Any:
    entry, scales, factor = (model.index.tensor(name + end) for end in ("", ".scales", ".factor"))
    assert entry is not None
    assert scales is not None
    assert factor is not None
    assert (entry.format, entry.scales, entry.factor) == ("nvfp4", scales.name, factor.name)
    codes, beside = raw_bytes(model, entry), Scales(raw_bytes(model, scales), scales.format)
    size = (entry.shape[0], entry.shape[1])
    rows = joined_rows("nvfp4", size, codes, beside, raw_bytes(model, factor))
    return nvfp4.FORMAT.dequantize(rows)


def test_any_block_is_read_as_the_gguf_package_reads_it() -> None:
    blocks = np.random.default_rng(5).integers(0, 256, (7, 3 * 36), dtype=np.uint8)
    blocks.reshape(-1, 36)[:, :4][blocks.reshape(-1, 36)[:, :4] == 0xFF] = 0
    blocks[0, :4] = (0x7F, 0x80, 0xFE, 0x01)
    ours = nvfp4.FORMAT.dequantize(nvfp4.join_rows(*nvfp4.split_ggml(blocks), 1.0))
    theirs = gguf.dequantize(blocks, gguf.GGMLQuantizationType.NVFP4)
    np.testing.assert_array_equal(ours, theirs.reshape(ours.shape))


@pytest.mark.parametrize("factors", ["", "yes"])
@pytest.mark.parametrize(("arch", "family", "types"), KINDS)
def test_values_are_those_of_the_file(
    arch: str, family: str, types: dict[str, str], factors: str, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    sizes = build(path, arch, family, types | {"factors": factors})
    result = convert_folder(path, tmp_path / "ftw")
    wanted = reference(path)
    assert result["details"]["quantization_level"] == "NVFP4"
    assert not result["notes"]
    with FtwModel.open(tmp_path / "ftw", check="checksums") as model:
        for part, name in (("attn.q", "attn_q"), ("attn.o", "attn_output")):
            values = dense_values(model, f"layers.1.{part}")
            if (arch, part) == ("llama", "attn.q"):
                values = tiny_gguf.permute(values, sizes.heads)
            np.testing.assert_array_equal(values, wanted[f"blk.1.{name}.weight"])
        for bank in model.index.banks:
            layer = int(bank.name.split(".")[1])
            for part, values in expert_values(model, layer).items():
                np.testing.assert_array_equal(values, wanted[f"blk.{layer}.ffn_{part}_exps.weight"])


@pytest.mark.parametrize(("arch", "family", "types"), KINDS)
def test_tokens_are_those_of_the_reference_kernels(
    arch: str, family: str, types: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    build(path, arch, family, types | {"factors": "yes"})
    convert_folder(path, tmp_path / "ftw")
    prompts = [random_ids(20, seed) for seed in (1, 2)]
    found = []
    for kernels in ("native", "reference"):
        answers = greedy(load_engine(tmp_path / "ftw", kernels=kernels), prompts, 12)
        found.append([answer.token_ids for answer in answers])
    assert found[0] == found[1]


def test_bytes_are_done_when_codes_and_scales_are(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    build(path, *KINDS[0])
    job, paths = local_job(path, tmp_path / "ftw")
    windows = Windows(LocalLink(paths), job.files)
    _, layout = read_plan(job, KeptRanges(windows, None))
    windows.close()
    covers = list(covers_of(layout.pieces, [job.files[0].bytes]))
    twice = [n for n, piece in enumerate(layout.pieces) if piece.blocks and not piece.role]
    assert twice
    for number in twice:
        codes, scales = layout.pieces[number : number + 2]
        assert (codes.start, codes.end) == (scales.start, scales.end)
        assert covers[number][1] == covers[number][2]
        assert covers[number + 1][1] <= scales.start < scales.end <= covers[number + 1][2]


def test_factors_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    monkeypatch.setattr(tiny_gguf.np, "linspace", lambda *_: np.ones(3))
    build(path, *KINDS[1][:2], EXPERTS | {"factors": "yes"})
    with pytest.raises(LoadError, match=r"_exps.scale is f32 \[3\]; the factors of .* f32 \[4\]"):
        convert_folder(path, tmp_path / "ftw")

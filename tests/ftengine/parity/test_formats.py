"""Every weight format end to end: a quantised model against the same model dequantised to float32.

The dequantising is the reference package's, so loading, packing and kernels are all under test.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from ftengine.convert.local import convert_folder
from ftengine.loader.ftw import FtwBank, FtwModel, FtwPart, block_digests
from ftengine.quant import format_named, panel32
from tests.fakes.tiny_models import TinySizes, build_tiny_gguf
from tests.ftengine.parity.tiny_engines import load_engine, random_ids

Bytes = npt.NDArray[np.uint8]
SIZES = TinySizes(
    hidden=256, heads=4, kv_heads=2, head_dim=64, inter=256, num_experts=4, expert_inter=256
)
PLAIN = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "mxfp4_gguf", "q5_0", "q5_1")
WIDE_BLOCKS = ("q4_k", "q5_k", "q6_k")


def convert(arch: str, folder: Path, types: dict[str, str]) -> Path:
    folder.mkdir()
    source = build_tiny_gguf(arch, folder / "m.gguf", types=types, sizes=SIZES)
    convert_folder(source, folder / "ftw")
    return folder / "ftw"


def floats(raw: Bytes, fmt: str) -> Bytes:
    """Row bytes of a format as row bytes of float32, by the reference package."""
    kind = gguf.GGMLQuantizationType(format_named(fmt).gguf_type)
    values = gguf.quants.dequantize(raw, kind).astype(np.float32)
    return np.ascontiguousarray(values).view(np.uint8)


def part_rows(part: FtwPart, data: Bytes) -> list[Bytes]:
    """gate and up, or down, as raw rows."""
    rows, cols = part.shape
    if part.layout == "rows":
        whole = data.reshape(rows, -1)
        return [whole[: rows // 2], whole[rows // 2 :]] if part.name == "gate_up" else [whole]
    if part.name == "gate_up":
        return list(panel32.unpack_pair(part.format, data, rows // 2, cols))
    return [panel32.unpack(part.format, data, rows, cols)]


def read(model: FtwModel, bank: FtwBank) -> Bytes:
    data = np.zeros(bank.bytes, dtype=np.uint8)
    model.read(bank, data.data)
    return data.reshape(bank.num_experts, bank.row_bytes)


def overwrite_with_dequantised(plain: Path, quantised: Path) -> None:
    with FtwModel.open(quantised) as source, FtwModel.open(plain) as target:
        places = {item.name: item for item in (*target.index.tensors, *target.index.banks)}
        for tensor in source.index.tensors:
            raw = np.zeros(tensor.bytes, dtype=np.uint8)
            source.read(tensor, raw.data)
            rows = raw.reshape(1 if len(tensor.shape) < 2 else tensor.shape[0], -1)
            place = places[tensor.name]
            put(
                plain / target.index.shards[place.shard].file,
                place.offset,
                floats(rows, tensor.format),
            )
        for bank in source.index.banks:
            place = places[bank.name]
            assert isinstance(place, FtwBank)
            data = np.zeros((place.num_experts, place.row_bytes), dtype=np.uint8)
            for expert, row in enumerate(read(source, bank)):
                for part in bank.parts:
                    rows = part_rows(part, row[part.offset : part.offset + part.bytes])
                    wide = [floats(np.ascontiguousarray(item), part.format) for item in rows]
                    packed = (
                        panel32.pack_pair("f32", *wide)
                        if part.name == "gate_up"
                        else panel32.pack("f32", *wide)
                    )
                    at = place.part(part.name).offset
                    data[expert, at : at + packed.size] = packed
            put(plain / target.index.shards[place.shard].file, place.offset, data)
    renew_checksums(plain)


def renew_checksums(folder: Path) -> None:
    """The engine compares what it reads with the index, so the index follows the new bytes."""
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        shard["blocks"] = list(block_digests(folder / shard["file"]))
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True, separators=(",", ":")))


def put(path: Path, offset: int, data: Bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(np.ascontiguousarray(data).tobytes())


@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
@pytest.mark.parametrize("fmt", [*PLAIN, *WIDE_BLOCKS])
def test_quantised_model_equals_its_dequantised_self(arch: str, fmt: str, tmp_path: Path) -> None:
    quantised = convert(arch, tmp_path / "q", {"matrix": fmt, "experts": fmt, "embed": fmt})
    plain = convert(arch, tmp_path / "f", {})
    overwrite_with_dequantised(plain, quantised)
    prompt = random_ids(40)
    truth = load_engine(plain).runner.logits(prompt)
    engine = load_engine(quantised)
    scale = max(1.0, float(truth.abs().max()))
    assert float(truth.std()) > 0.01
    assert float((engine.runner.logits(prompt) - truth).abs().max()) <= 1e-4 * scale
    assert not any(fmt in note for note in engine.info.notes)
    rounded = load_engine(quantised, compute="bfloat16").runner.logits(prompt)
    correlation = float(np.corrcoef(rounded.flatten(), truth.flatten())[0, 1])
    assert correlation > 0.99


def test_mixed_formats_in_one_layer(tmp_path: Path) -> None:
    quantised = convert("qwen3moe", tmp_path / "q", {"matrix": "q8_0", "experts": "q6_k"})
    plain = convert("qwen3moe", tmp_path / "f", {})
    overwrite_with_dequantised(plain, quantised)
    prompt = random_ids(40)
    truth = load_engine(plain).runner.logits(prompt)
    assert float((load_engine(quantised).runner.logits(prompt) - truth).abs().max()) <= 1e-4

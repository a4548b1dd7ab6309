"""Headers of foreign files: exact on good files, FormatError and nothing else on bad ones."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as reference
import pytest

from ftengine.errors import FormatError
from ftengine.loader import gguf, safetensors_header
from tests.fakes import tiny_models as tiny

Read = Callable[[bytes], Any]
LIMIT_S = 10.0


def read_gguf(data: bytes) -> gguf.GgufHeader:
    return gguf.read_header(lambda a, b: data[a:b], len(data), "t.gguf")


def read_safetensors(data: bytes) -> safetensors_header.SafetensorsHeader:
    return safetensors_header.read_header(lambda a, b: data[a:b], len(data), "t.safetensors")


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("g") / "t.gguf"
    return tiny.build_tiny_gguf("qwen3moe", path, types={"experts": "q4_1"}).read_bytes()


@pytest.fixture(scope="module")
def safetensors_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tiny.build_tiny("mixtral", tmp_path_factory.mktemp("s"))
    return (folder / "model.safetensors").read_bytes()


def test_gguf_header_equals_the_reference_reader(gguf_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf_bytes)
    header = read_gguf(gguf_bytes)
    expected = reference.GGUFReader(path)
    assert [
        (t.name, list(t.shape), t.type_id, t.start, t.end - t.start) for t in header.tensors
    ] == [
        (t.name, [int(s) for s in t.shape[::-1]], int(t.tensor_type), t.data_offset, int(t.n_bytes))
        for t in sorted(expected.tensors, key=lambda t: t.data_offset)
    ]
    for key, field in expected.fields.items():
        if not key.startswith("GGUF."):
            assert header.values[key] == field.contents(), key


def test_gguf_type_table_equals_the_reference() -> None:
    for kind, (elements, size) in reference.GGML_QUANT_SIZES.items():
        if int(kind) in gguf.GGML_TYPES:
            name, ours, ours_size = gguf.GGML_TYPES[int(kind)]
            assert (name, ours, ours_size) == (kind.name.lower(), elements, size)


def test_safetensors_header_equals_the_reference(safetensors_bytes: bytes) -> None:
    from safetensors.numpy import load

    expected = load(safetensors_bytes)
    header = read_safetensors(safetensors_bytes)
    assert {t.name for t in header.tensors} == set(expected)
    for tensor in header.tensors:
        data = safetensors_bytes[tensor.start : tensor.end]
        assert tensor.shape == expected[tensor.name].shape
        assert data == expected[tensor.name].tobytes()


def test_a_large_gguf_header_is_fetched_in_growing_steps(
    gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "FIRST_READ_BYTES", 64)
    asked: list[int] = []

    def fetch(start: int, end: int) -> bytes:
        asked.append(end)
        return gguf_bytes[start:end]

    header = gguf.read_header(fetch, len(gguf_bytes), "t.gguf")
    assert header == read_gguf(gguf_bytes)
    assert asked == sorted(asked)
    assert asked[-1] < 8 * header.header_bytes


@pytest.mark.parametrize("cut", [0, 3, 4, 8, 23, 24, 60, 1000, 5000])
def test_cut_files_are_refused(gguf_bytes: bytes, safetensors_bytes: bytes, cut: int) -> None:
    with pytest.raises(FormatError, match=r"t\.gguf"):
        read_gguf(gguf_bytes[:cut])
    with pytest.raises(FormatError, match=r"t\.safetensors"):
        read_safetensors(safetensors_bytes[:cut])
    with pytest.raises(FormatError):
        read_gguf(gguf_bytes[: len(gguf_bytes) - 1 - cut])
    with pytest.raises(FormatError):
        read_safetensors(safetensors_bytes[: len(safetensors_bytes) - 1 - cut])


@pytest.mark.parametrize(
    "data",
    [
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 62),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63) + b"x" * 99,
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 3) * 1000,
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 60),
        b"PK\x03\x04" + bytes(64),
        b"<html>" + bytes(64),
    ],
)
def test_hostile_gguf_counts_cost_nothing(data: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(FormatError):
        read_gguf(data + bytes(4096))
    assert time.perf_counter() - started < LIMIT_S


def _header(value: Any, data: int = 64) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def _entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64], **changes}}


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 1 << 63) + bytes(99),
        struct.pack("<Q", 99) + bytes(20),
        _header(b"["),
        _header([]),
        _header(b'{"a":' * 50_000),
        _header(b'{"w":1,"w":1}'),
        _header({"w": 1}),
        _header(_entry(dtype="X9")),
        _header(_entry(dtype=3)),
        _header(_entry(shape=[4, 5])),
        _header(_entry(shape=[-4, -4])),
        _header(_entry(shape=[4.0, 4])),
        _header(_entry(shape=[True] * 4)),
        _header(_entry(shape=[1] * 9)),
        _header(_entry(shape=[1 << 59] * 8)),
        _header(_entry(data_offsets=[64, 0])),
        _header(_entry(data_offsets=[0])),
        _header(_entry(data_offsets=[64, 128])),
        _header({**_entry(), "v": _entry(data_offsets=[32, 96])["w"]}, 96),
    ],
)
def test_hostile_safetensors_headers_are_refused(data: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(FormatError, match=r"t\.safetensors"):
        read_safetensors(data)
    assert time.perf_counter() - started < LIMIT_S


def mutants(data: bytes, header_bytes: int, count: int, seed: int) -> list[bytes]:
    """Random damage to the header: bytes, integers, cuts, doubled and moved pieces."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        out = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(header_bytes)
            kind = rng.randrange(5)
            if kind == 0:
                out[at] = rng.randrange(256)
            elif kind == 1:
                out[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 255, 1 << 31, 1 << 63]))
            elif kind == 2:
                del out[at : at + rng.randrange(1, 40)]
            elif kind == 3:
                out[at:at] = out[at : at + rng.randrange(1, 40)]
            else:
                out = out[: max(at, 1)]
                break
        found.append(bytes(out))
    return found


def survives(read: Read, data: bytes, count: int, seed: int) -> int:
    """Number of refused mutants; anything but FormatError or a slow one fails the test."""
    refused = 0
    for mutant in mutants(data, read(data).header_bytes, count, seed):
        started = time.perf_counter()
        try:
            read(mutant)
        except FormatError:
            refused += 1
        assert time.perf_counter() - started < LIMIT_S
    return refused


@pytest.mark.parametrize(
    "count", [pytest.param(150, id="short"), pytest.param(2000, marks=pytest.mark.slow, id="long")]
)
def test_mutated_headers_are_refused_or_read(
    gguf_bytes: bytes, safetensors_bytes: bytes, count: int
) -> None:
    assert survives(read_gguf, gguf_bytes, count, 1) > count // 4
    assert survives(read_safetensors, safetensors_bytes, count, 2) > count // 4

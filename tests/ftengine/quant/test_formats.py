"""Weight formats against the gguf package, bit for bit."""

from __future__ import annotations

import warnings

import gguf
import numpy as np
import pytest

from ftengine.quant import FORMATS, format_named, format_of_gguf
from ftengine.quant.base import QuantFormat

GGUF_FORMATS = tuple(item for item in FORMATS if item.gguf_type is not None)
WRITABLE = tuple(item for item in GGUF_FORMATS if item.encode_blocks is not None)


def gguf_dequantize(raw: np.ndarray, fmt: QuantFormat) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = gguf.dequantize(raw, gguf.GGMLQuantizationType(fmt.gguf_type))
    return np.ascontiguousarray(values, dtype=np.float32)


@pytest.mark.parametrize("fmt", GGUF_FORMATS, ids=lambda fmt: fmt.name)
def test_random_bytes_decode_as_the_gguf_package_does(fmt: QuantFormat) -> None:
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (13, 8 * fmt.block_bytes), dtype=np.uint8)
    if fmt.name == "mxfp4_gguf":  # GGML has no NaN scale: see test_released.py
        scales = raw[:, :: fmt.block_bytes]
        scales[scales == 255] = 254
    ours, theirs = fmt.dequantize(raw), gguf_dequantize(raw, fmt)
    if fmt.name == "mxfp4_gguf":
        ours += np.float32(0)  # that package has one zero, E2M1 two
    assert ours.dtype == np.float32
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


@pytest.mark.parametrize("fmt", WRITABLE, ids=lambda fmt: fmt.name)
def test_encoding_equals_the_gguf_package(fmt: QuantFormat) -> None:
    rng = np.random.default_rng(4)
    values = rng.standard_normal((40, 256)).astype(np.float32)
    values[0] = 0
    values[1] = 2.5
    values[2] *= 1e-6
    theirs = gguf.quantize(values, gguf.GGMLQuantizationType(fmt.gguf_type))
    assert np.array_equal(fmt.quantize(values), theirs.view(np.uint8).reshape(40, -1))


@pytest.mark.parametrize("fmt", WRITABLE, ids=lambda fmt: fmt.name)
def test_encoded_values_come_back_close(fmt: QuantFormat) -> None:
    values = np.random.default_rng(5).standard_normal((9, 64)).astype(np.float32)
    error = np.abs(fmt.dequantize(fmt.quantize(values)) - values).max()
    limit = {"f32": 0.0, "f16": 2e-3, "bf16": 2e-2, "q8_0": 3e-2}.get(fmt.name, 0.5)
    assert error <= limit


def test_ids_and_sizes_are_those_of_gguf() -> None:
    for fmt in GGUF_FORMATS:
        kind = gguf.GGMLQuantizationType(fmt.gguf_type)
        assert kind.name.lower() == fmt.name.removesuffix("_gguf")
        assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block_elements, fmt.block_bytes)
        assert format_named(fmt.name) is fmt
        assert format_of_gguf(fmt.gguf_type) is fmt


def test_leading_dimensions_are_kept() -> None:
    fmt = format_named("q4_0")
    raw = fmt.quantize(np.ones((2, 3, 64), dtype=np.float32))
    assert raw.shape == (2, 3, 36)
    assert fmt.dequantize(raw).shape == (2, 3, 64)


def test_wrong_inputs_name_the_format_and_the_limit() -> None:
    with pytest.raises(ValueError, match=r"q8_0 rows need a positive multiple of 32 .* got 40"):
        format_named("q8_0").row_bytes(40)
    with pytest.raises(ValueError, match="a multiple of 18 bytes"):
        format_named("q4_0").dequantize(np.zeros((1, 17), dtype=np.uint8))
    with pytest.raises(ValueError, match="q4_k can be read, not written"):
        format_named("q4_k").quantize(np.zeros((1, 256), dtype=np.float32))
    with pytest.raises(ValueError, match="unknown weight format 'q9'; known are f32"):
        format_named("q9")
    for type_id in (99, format_named("mxfp4").native_id):
        with pytest.raises(ValueError, match=f"GGML type {type_id} is not supported"):
            format_of_gguf(type_id)

"""Random weights of a benchmark are what GGUF readers take for their format."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from benchmarks.random_moe import DENSE_FORMATS, GGUF_NAMES, random_rows
from ftengine.quant import format_named


@pytest.mark.parametrize("name", [*DENSE_FORMATS, "mxfp4", "nvfp4", "q8_0"])
def test_rows_have_the_size_of_their_format_and_small_finite_values(name: str) -> None:
    rows = random_rows(name, (2, 3, 768), np.random.default_rng(1))
    fmt = format_named(GGUF_NAMES.get(name, name))
    number = 40 if name == "nvfp4" else fmt.gguf_type
    kind = gguf.GGMLQuantizationType(number)
    assert rows.shape == gguf.quant_shape_to_byte_shape((2, 3, 768), kind)
    values = gguf.dequantize(rows, kind)
    assert values.shape == (2, 3, 768)
    assert np.isfinite(values).all()
    assert 0.001 < values.std() < 100
    assert not np.array_equal(rows[0], rows[1])

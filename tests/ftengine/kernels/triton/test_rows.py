"""The embedding's gather in every format it reads, and sums of strided rows."""

from __future__ import annotations

import pytest
import torch

from ftengine.kernels.dispatch import EMBED_FORMATS
from ftengine.kernels.reference import linear as reference_linear
from ftengine.kernels.triton import row_calls
from ftengine.quant import format_named
from tests.ftengine.kernels.triton.interpreter import Interpreter


@pytest.mark.parametrize("fmt", EMBED_FORMATS)
def test_rows_of_a_table(interpreter: Interpreter, fmt: str) -> None:
    """Two blocks wide, so that the second block's scale and nibbles are found."""
    table = torch.from_numpy(format_named(fmt).quantize(torch.randn(7, 64).numpy()))
    ids, out = torch.tensor([6, 0, 6]), torch.full((3, 64), float("nan"))
    interpreter.run(row_calls.embed_rows(table, fmt, ids, out))
    assert torch.equal(out, reference_linear.embed_rows(table, fmt, 64, ids))


def test_sums_of_rows_that_lie_apart(interpreter: Interpreter) -> None:
    source, target = torch.randn(3, 9), torch.randn(3, 11)
    bias, before = torch.randn(5), target.clone()
    part = torch.empty(3, 5)
    interpreter.run(
        row_calls.add_rows(source[:, :5], part, bias),
        row_calls.add_rows(part, target[:, :5], accumulate=True, factor=0.5),
    )
    assert torch.allclose(part, source[:, :5] + bias)
    assert torch.allclose(target[:, :5], before[:, :5] + 0.5 * part)
    assert torch.equal(target[:, 5:], before[:, 5:])

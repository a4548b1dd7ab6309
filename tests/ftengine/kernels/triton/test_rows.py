"""The embedding's gather in every format it reads; sums, gates and bounds of strided rows."""

from __future__ import annotations

import pytest
import torch

from ftengine.kernels.dispatch import EMBED_FORMATS
from ftengine.kernels.reference import linear as reference_linear
from ftengine.kernels.reference.rows import TorchRows
from ftengine.kernels.triton import layer_calls, row_calls
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


ROWS = TorchRows()


@pytest.mark.parametrize(
    ("kind", "parts"),
    [("sigmoid", (3, 12)), ("silu", (3, 12)), ("plain", (1, 4)), ("plain", (3, 1))],
)
def test_gates(interpreter: Interpreter, kind: str, parts: tuple[int, int]) -> None:
    """A gate for each number, for each of a head's numbers, for each row; in place."""
    wide, gate = torch.randn(3, 20), torch.randn(*parts)
    x, rest = wide[:, :12], wide[:, 12:].clone()
    expected = ROWS.gate_rows(x, gate, torch.empty(3, 12), kind)
    interpreter.run(row_calls.gate_rows(x, gate, x, kind))
    assert torch.allclose(x, expected, atol=1e-6)
    assert torch.equal(wide[:, 12:], rest)


def test_gates_by_number(interpreter: Interpreter) -> None:
    x, gate, index = torch.randn(3, 12), torch.randn(7, 1), torch.tensor([5, 0, 5]).int()
    out = torch.full((3, 12), float("nan"))
    interpreter.run(row_calls.gate_rows(x, gate, out, "plain", index))
    assert torch.allclose(out, x * gate[index.long()])


@pytest.mark.parametrize(
    ("heads", "before", "after", "turns"), [(4, 2, 5, 1), (4, 5, 2, 1), (6, 3, 3, 2)]
)
def test_heads_are_moved_in_place(
    interpreter: Interpreter, heads: int, before: int, after: int, turns: int
) -> None:
    """Longer, shorter, and those of two groups in turns."""
    wide = torch.randn(3, 24)
    x, out = wide[:, : heads * before], wide[:, : heads * after]
    expected = ROWS.move_heads(x, torch.empty(out.shape), heads, before, after, turns)
    interpreter.run(row_calls.move_heads(wide, wide, heads, before, after, turns))
    assert torch.equal(out, expected)


@pytest.mark.parametrize("kind", ["sigmoid", "tanh", "clamp"])
def test_bounds(interpreter: Interpreter, kind: str) -> None:
    wide = 9 * torch.randn(3, 20)
    wide[0, :2] = torch.tensor([1e4, -1e4])
    x = wide[:, :12]
    out, expected = torch.full((3, 12), float("nan")), torch.empty(3, 12)
    interpreter.run(row_calls.squash_rows(x, out, kind, 5.0))
    assert torch.allclose(out, ROWS.squash_rows(x, expected, kind, 5.0), atol=1e-5)


def test_rows_are_filled_whatever_they_held(interpreter: Interpreter) -> None:
    wide = torch.full((3, 20), float("nan"))
    interpreter.run(row_calls.squash_rows(None, wide[:, :12], "fill", 0.5))
    assert (wide[:, :12] == 0.5).all()
    assert wide[:, 12:].isnan().all()


def test_means_and_norms_of_parts(interpreter: Interpreter) -> None:
    wide, weight, out = torch.randn(3, 20), torch.randn(12), torch.full((3, 12), float("nan"))
    x, centred = wide[:, :12], torch.full((3, 12), float("nan"))
    interpreter.run(
        layer_calls.rms_norm(x, weight, 1e-5, out, groups=3), layer_calls.centre_rows(x, centred)
    )
    expected = torch.empty(3, 12)
    assert torch.allclose(out, ROWS.group_norm(x, weight, 3, 1e-5, expected), atol=1e-5)
    assert torch.allclose(centred, ROWS.centre_rows(x, expected), atol=1e-6)

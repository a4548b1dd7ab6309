"""Copying rows: every shape and alignment gets the bytes it asks for, and nothing beside them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.row_copies import torch_copy_rows

SHAPES = [(1, 9, 1), (3, 9, 61), (16, 40, 4096), (2, 5, 1_200_007), (1, 3, 5 << 20)]


@pytest.fixture(scope="module", params=[1, 2, 5])
def native(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    kernels = NativeKernels.load(num_threads=request.param)
    yield kernels
    kernels.set_threads(2)


def filled(parts: int, rows: int, width: int, seed: int, beside: bool) -> torch.Tensor:
    """Rows whose parts lie side by side, or parts whose rows do; from an odd address on."""
    draw = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (3 + parts * rows * width,), generator=draw, dtype=torch.uint8)
    if beside:
        return data[3:].view(rows, parts, width).transpose(0, 1)
    return data[3:].view(parts, rows, width)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_become_the_rows_named_and_the_others_stay(
    shape: tuple[int, int, int], beside: bool, native: NativeKernels
) -> None:
    parts, rows, width = shape
    draw = random.Random(width)
    source = filled(parts, rows, width, 1, beside)
    target = filled(parts, rows + 2, width, 2, not beside)
    expected, by_torch = target.clone(), target.clone()
    taken, into = draw.choices(range(rows), k=rows), draw.sample(range(rows + 2), rows)
    for row, other in zip(taken, into, strict=True):
        expected[:, other] = source[:, row]
    native.copy_rows(source, taken, target, into)
    torch_copy_rows(source, taken, by_torch, into)
    assert torch.equal(target, expected)
    assert torch.equal(by_torch, expected)


def test_nothing_to_copy_copies_nothing(native: NativeKernels) -> None:
    source, target = filled(2, 3, 8, 1, False), filled(2, 3, 8, 2, False)
    before = target.clone()
    native.copy_rows(source, (), target, ())
    native.copy_rows(source[:0], (1,), target[:0], (1,))
    assert torch.equal(target, before)


@pytest.mark.parametrize(("taken", "into"), [((3,), (0,)), ((0,), (-1,)), ((0, 1), (4, 0))])
def test_row_that_does_not_exist_is_refused(
    taken: tuple[int, ...], into: tuple[int, ...], native: NativeKernels
) -> None:
    source, target = filled(2, 3, 8, 1, False), filled(2, 4, 8, 2, False)
    before = target.clone()
    with pytest.raises(EngineError, match="out of range"):
        native.copy_rows(source, taken, target, into)
    assert torch.equal(target, before)


def test_shapes_that_differ_are_refused(native: NativeKernels) -> None:
    rows = filled(2, 3, 8, 1, False)
    for other in (rows[:1], rows[..., :4], rows.to(torch.int64), rows.transpose(1, 2)):
        with pytest.raises(EngineError, match="copy_rows"):
            native.copy_rows(rows, (0,), other, (0,))
    with pytest.raises(EngineError, match="copy_rows"):
        native.copy_rows(rows, (0, 1), rows, (2,))

"""Small Triton kernels for the launcher's tests; the engine's own are in kernels/triton/."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_rows(out, x, factor, num_cols, row_start, BLOCK: tl.constexpr, ADD_ONE: tl.constexpr):
    """out[r, :] = x[r, :] * factor (+ 1)."""
    row = row_start + tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < num_cols
    value = tl.load(x + row * num_cols + cols, mask=inside) * factor
    if ADD_ONE:
        value += 1
    tl.store(out + row * num_cols + cols, value, mask=inside)


@triton.jit
def square(out, a, num, SIZE: tl.constexpr):
    """out = a @ a^T for one SIZE x SIZE tile: uses shared memory."""
    rows = tl.arange(0, SIZE)
    tile = tl.load(a + rows[:, None] * SIZE + rows[None, :])
    result = tl.dot(tile, tl.trans(tile))
    tl.store(out + rows[:, None] * SIZE + rows[None, :], result, mask=rows[:, None] < num)

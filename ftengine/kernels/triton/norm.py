"""RMS norms of rows and of equal parts of rows; the residual is added first where there is one.

Reference: norm.py, rows.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    x: tl.tensor,
    weight: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    size: tl.tensor,
    groups: tl.tensor,
    eps: tl.tensor,
    num_rows: tl.tensor,
    RESIDUAL: tl.constexpr,
    ADD_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out = x / rms(x) * weight, of each of `groups` parts of a row; with a residual, residual += x
    first and is normalised.

    Shape: x, out [rows, groups * size], strides in numbers; residual the same, contiguous; weight
    [groups * size]; BLOCK >= size. Grid: rows, groups.
    """
    at = tl.arange(0, BLOCK)
    live = at < size
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * size
    value = tl.load(x + row * x_stride + first + at, mask=live, other=0.0).to(tl.float32)
    if RESIDUAL:
        place = residual + row * (groups * size) + first + at
        value += tl.load(place, mask=live, other=0.0).to(tl.float32)
        # neighbours may still read what is overwritten here
        tl.debug_barrier()
        tl.store(place, value.to(residual.dtype.element_ty), mask=live)
    scale = 1.0 / tl.sqrt_rn(tl.sum(value * value, 0) / size + eps)
    factor = tl.load(weight + first + at, mask=live, other=0.0).to(tl.float32)
    if ADD_ONE:
        factor += 1.0
    target = out + row * out_stride + first + at
    tl.store(target, (value * scale * factor).to(out.dtype.element_ty), mask=live)


@triton.jit
def centre_rows(
    x: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    size: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """out = x less the mean of its row; x may be out. Shape: [rows, size], strides in numbers;
    BLOCK >= size. Grid: rows.
    """
    at = tl.arange(0, BLOCK)
    live = at < size
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(x + row * x_stride + at, mask=live, other=0.0)
    mean = tl.sum(value, 0) / size
    tl.store(out + row * out_stride + at, value - mean, mask=live)

"""RMS norm of rows, with the residual added first where there is one. Reference: norm.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    x: tl.tensor,
    weight: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    eps: tl.tensor,
    num_rows: tl.tensor,
    RESIDUAL: tl.constexpr,
    ADD_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out = x / rms(x) * weight; with a residual, residual += x first and is normalised.

    Shape: x, residual, out [rows, size]; weight [size]; BLOCK >= size. Grid: rows.
    """
    at = tl.arange(0, BLOCK)
    live = at < size
    row = tl.program_id(0).to(tl.int64) * size + at
    value = tl.load(x + row, mask=live, other=0.0).to(tl.float32)
    if RESIDUAL:
        value += tl.load(residual + row, mask=live, other=0.0).to(tl.float32)
        # neighbours may still read what is overwritten here
        tl.debug_barrier()
        tl.store(residual + row, value.to(residual.dtype.element_ty), mask=live)
    scale = 1.0 / tl.sqrt_rn(tl.sum(value * value, 0) / size + eps)
    factor = tl.load(weight + at, mask=live, other=0.0).to(tl.float32)
    if ADD_ONE:
        factor += 1.0
    tl.store(out + row, (value * scale * factor).to(out.dtype.element_ty), mask=live)

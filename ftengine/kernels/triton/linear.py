"""A dense matrix in panels times a few rows; many rows: grouped_gemm.py. Reference: linear.py."""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.panel import panel_bytes, panel_dot


@triton.jit
def linear(
    x: tl.tensor,
    matrix: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    rows: tl.tensor,
    cols: tl.tensor,
    num_tokens: tl.tensor,
    FORMAT: tl.constexpr,
    BIAS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out (+)= x matrix^T + bias.

    Shape: x [tokens, cols], out [tokens, rows], strides in numbers; bias float32 [rows]. Grid:
    panels, tokens.
    """
    panel, token = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = matrix + panel.to(tl.int64) * panel_bytes(cols, FORMAT)
    total = panel_dot(at, x + token * x_stride, cols, FORMAT, BLOCK)
    row = panel * 32 + tl.arange(0, 32)
    live = row < rows
    if BIAS:
        total += tl.load(bias + row, mask=live, other=0.0)
    place = out + token * out_stride + row
    if ACCUMULATE:
        total += tl.load(place, mask=live, other=0.0)
    tl.store(place, total, mask=live)

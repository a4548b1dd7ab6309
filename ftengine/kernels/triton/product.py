"""Matrix products of tiles in the type that a build names.

"bf16": operands rounded to bfloat16, sums in float32. "f32": everything in float32, no tf32.
"bf16_wide": brought to bfloat16 but multiplied as float32, for Triton's interpreter, whose bfloat16
products are wrong (and whose rounding to bfloat16 cuts bits off).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a: tl.tensor, b: tl.tensor, acc: tl.tensor, DOT: tl.constexpr) -> tl.tensor:
    """acc + a b. Shape: [m, k], [k, n], acc float32 [m, n]."""
    if DOT == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    elif DOT == "bf16_wide":
        left = a.to(tl.bfloat16).to(tl.float32)
        right = b.to(tl.bfloat16).to(tl.float32)
        acc = tl.dot(left, right, acc, input_precision="ieee")
    else:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return acc

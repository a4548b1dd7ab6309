"""The table of sample_kernels.py. No Triton here: a table must be readable without it."""

from __future__ import annotations

from ftengine.gpu.kernel_table import Argument, Build, Kernel, KernelTable

_MODULE = "tests.ftengine.gpu.sample_kernels"

SCALE = Kernel(
    name="scale_rows.f32",
    module=_MODULE,
    function="scale_rows",
    arguments=(
        Argument("out", "*fp32"),
        Argument("x", "*fp32"),
        Argument("factor", "fp32"),
        Argument("num_cols", "i32", aligned=True),
        Argument("row_start", "i64"),
    ),
    constants=("BLOCK", "ADD_ONE"),
    grid=lambda sizes: (2 * sizes["num_cols"] // sizes["BLOCK"], 1, 1),
)
SQUARE = Kernel(
    name="square.bf16",
    module=_MODULE,
    function="square",
    arguments=(Argument("out", "*fp32"), Argument("a", "*bf16"), Argument("num", "i32")),
    constants=("SIZE",),
    grid=lambda sizes: (1, 1, 1),
)
SCALE_32 = Build("scale_rows.f32", (("BLOCK", 32), ("ADD_ONE", True)), num_warps=2)
SQUARE_128 = Build("square.bf16", (("SIZE", 128),), num_warps=8, num_stages=1)
TABLE = KernelTable((SCALE, SQUARE), (SCALE_32, SQUARE_128))

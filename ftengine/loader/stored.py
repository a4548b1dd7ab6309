"""Quantised tensors as an FTW stores them: codes in one region, scales and factor in others.

Sizes and names only, no torch, no numpy; joined.py moves the bytes. docs/ftw.md has the same table.
"""

from __future__ import annotations

FP8_BLOCK = "fp8_block"
FP8_BLOCK_E8M0 = "fp8_block_e8m0"
FP8_TENSOR = "fp8_tensor"
MXFP4 = "mxfp4"
NVFP4 = "nvfp4"
NVFP4_DIV = "nvfp4_div"
INT4 = "int4_group"

SCALE_FORMATS: dict[str, tuple[str, ...]] = {
    FP8_BLOCK: ("f32", "bf16", "f16"),
    FP8_BLOCK_E8M0: ("e8m0",),
    FP8_TENSOR: ("f32", "bf16", "f16"),
    MXFP4: ("e8m0",),
    NVFP4: ("e4m3",),
    NVFP4_DIV: ("e4m3",),
    INT4: ("f32", "bf16", "f16"),
}
"""Formats whose dense tensors keep their scales in a tensor of their own, and of what items."""

FACTORED = (NVFP4, NVFP4_DIV)
"""Formats with one more float32 for the whole tensor."""

SCALE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "e8m0": 1, "e4m3": 1}
"""Item formats of scales and their sizes."""

VECTOR_LAYOUT = "vector"
"""Layout of the bias vectors in a bank's rows."""

BLOCK = 128
"""Rows and columns that share one scale in fp8_block."""

_GROUPS = {MXFP4: 32, NVFP4: 16, NVFP4_DIV: 16, INT4: 32}
_INT4_GROUPS = (32, 64, 128, 256)
_ROW_FORMATS = {INT4: "q4_0"}
_BLOCKS = (FP8_BLOCK, FP8_BLOCK_E8M0)


def row_format(fmt: str) -> str:
    """The format of rows that have their scales in them; that of the codes, mostly."""
    return _ROW_FORMATS.get(fmt, fmt)


def code_bytes(fmt: str, cols: int) -> int:
    """Bytes of a row of codes without its scales. Raises: ValueError if cols does not fit."""
    group = _GROUPS.get(fmt)
    if group is None:
        return cols
    if cols % group:
        raise ValueError(f"{fmt} rows need a multiple of {group} elements, got {cols}")
    return cols // 2


def scale_shapes(fmt: str, rows: int, cols: int) -> tuple[tuple[int, ...], ...]:
    """Shapes the scales of a matrix may have; the first is the usual one.

    Raises: ValueError if cols does not fit.
    """
    if fmt in _BLOCKS:
        return ((-(-rows // BLOCK), -(-cols // BLOCK)),)
    if fmt == FP8_TENSOR:
        return ((1,), (), (1, 1), (rows, 1), (rows,))
    code_bytes(fmt, cols)
    if fmt == INT4:
        sizes = [group for group in _INT4_GROUPS if cols % group == 0]
        return (*((rows, cols // group) for group in sizes), (rows, 1))
    return ((rows, cols // _GROUPS[fmt]),)

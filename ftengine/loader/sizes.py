"""Sizes of an FTW's tensors and parts: what they must be on disk, what they take in memory."""

from __future__ import annotations

import numpy as np

from ftengine.errors import FormatError
from ftengine.experts import repack
from ftengine.loader.ftw import FtwBank, FtwPart, FtwTensor
from ftengine.loader.stored import SCALE_BYTES, SCALE_FORMATS, VECTOR_LAYOUT, code_bytes, row_format
from ftengine.models.weight_names import BIAS_PARTS, number_bytes
from ftengine.quant import format_named, panel32


def check_tensor(entry: FtwTensor) -> None:
    """Compare bytes with format and shape. Raises: FormatError naming the tensor."""
    cols = entry.shape[-1]
    rows = int(np.prod(entry.shape[:-1], dtype=np.int64))
    try:
        expected = rows * _stored_row_bytes(entry.format, cols)
    except ValueError as error:
        raise FormatError(f"{entry.name}: {error}") from None
    if expected != entry.bytes:
        raise FormatError(
            f"{entry.name} has {entry.bytes} bytes; {entry.format} {entry.shape} takes {expected}"
        )


def check_part(bank: FtwBank, part: FtwPart) -> None:
    """Compare bytes with format, layout and shape. Raises: FormatError naming the part."""
    if part.name in BIAS_PARTS:
        _check_vector(bank, part)
        return
    expected_layout = panel32.LAYOUT + (".pair" if part.name == "gate_up" else "")
    if len(part.shape) != 2 or part.layout not in ("rows", expected_layout):
        raise FormatError(f"{bank.name}.{part.name}: layout {part.layout!r} is not known here")
    rows, cols = part.shape
    try:
        if part.layout == "rows":
            expected = rows * format_named(part.format).row_bytes(cols)
        elif part.name == "gate_up":
            expected = panel32.packed_bytes(part.format, rows // 2, cols, paired=True)
        else:
            expected = panel32.packed_bytes(part.format, rows, cols)
    except ValueError as error:
        raise FormatError(f"{bank.name}.{part.name}: {error}") from None
    if expected != part.bytes:
        raise FormatError(
            f"{bank.name}.{part.name} has {part.bytes} bytes; {part.format} {part.shape} "
            f"takes {expected}"
        )


def _check_vector(bank: FtwBank, part: FtwPart) -> None:
    good = part.layout == VECTOR_LAYOUT and part.format in ("f32", "f16", "bf16")
    if not good or len(part.shape) != 1:
        raise FormatError(f"{bank.name}.{part.name}: layout {part.layout!r} is not known here")
    expected = format_named(part.format).row_bytes(part.shape[0])
    if expected != part.bytes:
        raise FormatError(
            f"{bank.name}.{part.name} has {part.bytes} bytes; {part.format} {part.shape} "
            f"takes {expected}"
        )


def tensor_bytes(entry: FtwTensor, wide: str) -> int:
    """Memory of a dense tensor in the form in which it is kept."""
    if len(entry.shape) != 2:
        return 4 * int(np.prod(entry.shape, dtype=np.int64))
    if number_bytes(entry.name):
        return number_bytes(entry.name) * entry.shape[0] * entry.shape[1]
    fmt = repack.panel_format_of(row_format(entry.format), entry.shape[1], wide)
    return panel32.packed_bytes(fmt, entry.shape[0], entry.shape[1])


def bank_bytes(bank: FtwBank, wide: str) -> int:
    """Memory of a bank in the form the kernels read."""
    if all(part.layout != "rows" for part in bank.parts):
        return bank.bytes
    total = 0
    for part in bank.parts:
        rows, cols = part.shape[0], part.shape[-1]
        total += panel32.packed_bytes(repack.panel_format_of(part.format, cols, wide), rows, cols)
    return bank.num_experts * total


def _stored_row_bytes(fmt: str, cols: int) -> int:
    if fmt in SCALE_FORMATS:
        return code_bytes(fmt, cols)
    return cols * SCALE_BYTES[fmt] if fmt in SCALE_BYTES else format_named(fmt).row_bytes(cols)

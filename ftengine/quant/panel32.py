"""panel32.v1, the weight layout of the kernels: pack and unpack, numpy only.

The bit-exact description is docs/panel32.md. Bytes are the checkpoint's own, only moved, so pack
and unpack are exact inverses; what is added is zero rows up to the next whole panel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftengine.quant.base import Bytes, QuantFormat
from ftengine.quant.panel_form import (
    PAIR_ROWS,
    PANEL_FORMATS,
    PANEL_ROWS,
    PART_ALIGN_BYTES,
    PanelFormat,
    PanelShape,
    pack_panels,
    panel_shape,
    round_up,
    row_buffer,
    unpack_panel,
)

__all__ = [
    "LAYOUT",
    "PAIR_ROWS",
    "PANEL_FORMATS",
    "PANEL_ROWS",
    "PART_ALIGN_BYTES",
    "ROW_ALIGN_BYTES",
    "ExpertLayout",
    "PanelFormat",
    "expert_layout",
    "fits",
    "pack",
    "pack_pair",
    "packed_bytes",
    "panel_format",
    "supports",
    "unpack",
    "unpack_pair",
]

LAYOUT = "panel32.v1"
ROW_ALIGN_BYTES = 4096
_AT_ONCE_BYTES = 512 << 10
"""Rows packed with one call of numpy's."""


@dataclass(frozen=True)
class ExpertLayout:
    """Where the parts of a bank row lie. Units: bytes from the start of the row.

    The bias vectors exist only where the bank says so: gate's entries before up's.
    """

    gate_up_offset: int
    down_offset: int
    row_bytes: int
    gate_up_bias_offset: int = 0
    down_bias_offset: int = 0


def panel_format(fmt: QuantFormat | str) -> PanelFormat:
    """The panel form of a weight format. Raises: ValueError where panel32 has none."""
    name = fmt if isinstance(fmt, str) else fmt.name
    for candidate in PANEL_FORMATS:
        if candidate.quant.name == name:
            return candidate
    known = ", ".join(candidate.quant.name for candidate in PANEL_FORMATS)
    raise ValueError(f"{name} has no panel32 form; dequantize it to one of {known}")


def supports(fmt: QuantFormat | str) -> bool:
    """Whether panel32 can hold this weight format."""
    name = fmt if isinstance(fmt, str) else fmt.name
    return any(candidate.quant.name == name for candidate in PANEL_FORMATS)


def fits(fmt: QuantFormat | str, cols: int) -> bool:
    """Whether panel32 can hold rows of `cols` elements of this format."""
    return supports(fmt) and cols > 0 and cols % panel_format(fmt).group_elements == 0


def packed_bytes(fmt: QuantFormat | str, rows: int, cols: int, paired: bool = False) -> int:
    """Bytes of a packed matrix. For a pair, `rows` is the row count of gate (and of up).

    Raises: ValueError if cols does not fit the format.
    """
    panels = -(-rows // (PAIR_ROWS if paired else PANEL_ROWS))
    return panels * panel_shape(panel_format(fmt), cols).panel_bytes


def pack(fmt: QuantFormat | str, raw_rows: Bytes, out: Bytes | None = None) -> Bytes:
    """Lay out a matrix in panels. Shape: uint8 [rows, row_bytes] -> uint8 [packed_bytes].

    out: where to, a new array if None. Raises: ValueError if the rows do not fit the format.
    """
    shape = _shape_of(panel_format(fmt), raw_rows)
    count = -(-raw_rows.shape[0] // PANEL_ROWS)
    panels = _new_panels(shape, count) if out is None else out.reshape(count, shape.panel_bytes)
    whole = raw_rows.shape[0] // PANEL_ROWS
    halves = raw_rows[: whole * PANEL_ROWS].reshape(whole, 2, PAIR_ROWS, raw_rows.shape[1])
    _pack_whole(shape, halves[:, 0], halves[:, 1], panels[:whole])
    if whole < panels.shape[0]:
        rest = raw_rows[whole * PANEL_ROWS :]
        _pack_rest(shape, (rest[:PAIR_ROWS], rest[PAIR_ROWS:]), panels[whole:])
    return panels.reshape(-1)


def pack_pair(fmt: QuantFormat | str, gate_rows: Bytes, up_rows: Bytes) -> Bytes:
    """Lay out gate and up as one matrix: panel p = 16 rows of gate, then the same 16 of up.

    Shape: two uint8 [rows, row_bytes] -> uint8 [packed_bytes(paired=True)].
    Raises: ValueError if the two differ in shape or do not fit the format.
    """
    shape = _shape_of(panel_format(fmt), gate_rows)
    if gate_rows.shape != up_rows.shape or up_rows.dtype != np.uint8:
        raise ValueError(f"gate {gate_rows.shape} and up {up_rows.shape} must have one shape")
    panels = _new_panels(shape, -(-gate_rows.shape[0] // PAIR_ROWS))
    whole = gate_rows.shape[0] // PAIR_ROWS
    end = whole * PAIR_ROWS
    sizes = (whole, PAIR_ROWS, gate_rows.shape[1])
    gate, up = gate_rows[:end].reshape(sizes), up_rows[:end].reshape(sizes)
    _pack_whole(shape, gate, up, panels[:whole])
    if whole < panels.shape[0]:
        _pack_rest(shape, (gate_rows[end:], up_rows[end:]), panels[whole:])
    return panels.reshape(-1)


def unpack(fmt: QuantFormat | str, packed: Bytes, rows: int, cols: int) -> Bytes:
    """Inverse of pack. Shape: uint8 [packed_bytes] -> uint8 [rows, row_bytes].

    Raises: ValueError if the size does not match.
    """
    every = _unpack_all(panel_format(fmt), packed, (rows, cols), paired=False)
    return every.reshape(-1, every.shape[-1])[:rows]


def unpack_pair(fmt: QuantFormat | str, packed: Bytes, rows: int, cols: int) -> tuple[Bytes, Bytes]:
    """Inverse of pack_pair. Shape: uint8 [packed_bytes] -> two uint8 [rows, row_bytes]."""
    every = _unpack_all(panel_format(fmt), packed, (rows, cols), paired=True)
    halves = every.reshape(-1, 2, PAIR_ROWS, every.shape[-1])
    gate = np.ascontiguousarray(halves[:, 0]).reshape(-1, every.shape[-1])[:rows]
    up = np.ascontiguousarray(halves[:, 1]).reshape(-1, every.shape[-1])[:rows]
    return gate, up


def expert_layout(
    fmt_gate_up: QuantFormat | str,
    fmt_down: QuantFormat | str,
    hidden: int,
    inter: int,
    *,
    gated: bool = True,
) -> ExpertLayout:
    """The bank row of one expert: gate_up [2 * inter, hidden], then down [hidden, inter].

    Not gated: up [inter, hidden] instead of gate_up.

    Raises: ValueError if a size does not fit its format.
    """
    gate_up = packed_bytes(fmt_gate_up, inter, hidden, paired=gated)
    down_offset = round_up(gate_up, PART_ALIGN_BYTES)
    end = down_offset + packed_bytes(fmt_down, hidden, inter)
    return ExpertLayout(0, down_offset, round_up(end, ROW_ALIGN_BYTES))


def _shape_of(panel: PanelFormat, rows: Bytes) -> PanelShape:
    """Sizes of the panels of these rows. Raises: ValueError if they are no rows of the format."""
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[0] == 0:
        raise ValueError(f"panel32 packs uint8 [rows, row_bytes], got {rows.dtype} {rows.shape}")
    try:
        cols = panel.quant.row_cols(rows.shape[1])
        return panel_shape(panel, cols)
    except ValueError:
        before = "" if panel.quant.header is None else "float32 factors and then "
        raise ValueError(
            f"panel32 {panel.quant.name} needs rows of {before}a multiple of {panel.group_bytes} "
            f"bytes ({panel.group_elements} columns), got {rows.shape[1]} bytes"
        ) from None


def _new_panels(shape: PanelShape, count: int) -> Bytes:
    return np.empty((count, shape.panel_bytes), dtype=np.uint8)


def _pack_whole(shape: PanelShape, first: Bytes, second: Bytes, out: Bytes) -> None:
    """Panels all of whose rows exist, some at a time: their bytes stay in the cache.

    Shape: first, second uint8 [panels, 16, row_bytes] -> out uint8 [panels, panel_bytes].
    """
    buffer = row_buffer(shape, max(1, _AT_ONCE_BYTES // (PANEL_ROWS * shape.row_bytes)))
    for at in range(0, out.shape[0], buffer.shape[0]):
        part = buffer[: out.shape[0] - at]
        part[:, :PAIR_ROWS, : shape.row_bytes] = first[at : at + part.shape[0]]
        part[:, PAIR_ROWS:, : shape.row_bytes] = second[at : at + part.shape[0]]
        pack_panels(shape, part, (PAIR_ROWS, PAIR_ROWS), out[at : at + part.shape[0]])


def _pack_rest(shape: PanelShape, halves: tuple[Bytes, Bytes], out: Bytes) -> None:
    """The last panel, from less than 16 rows for one of its halves or both."""
    buffer = row_buffer(shape)
    for first, part in zip((0, PAIR_ROWS), halves, strict=True):
        buffer[0, first : first + part.shape[0], : shape.row_bytes] = part
    pack_panels(shape, buffer, (halves[0].shape[0], halves[1].shape[0]), out)


def _unpack_all(panel: PanelFormat, packed: Bytes, size: tuple[int, int], *, paired: bool) -> Bytes:
    """Rows of all panels, filled-up ones too. Shape: -> uint8 [panels, 32, row_bytes]."""
    rows, cols = size
    expected = packed_bytes(panel.quant, rows, cols, paired)
    if packed.dtype != np.uint8 or packed.size != expected:
        raise ValueError(
            f"panel32 {panel.quant.name} [{rows}, {cols}] is {expected} bytes, got {packed.size}"
        )
    shape = panel_shape(panel, cols)
    panels = np.ascontiguousarray(packed).reshape(-1, shape.panel_bytes)
    out = np.empty((panels.shape[0], PANEL_ROWS, shape.row_bytes), dtype=np.uint8)
    buffer = row_buffer(shape)[0]
    for index in range(panels.shape[0]):
        unpack_panel(shape, panels[index], buffer)
        out[index] = buffer[:, : shape.row_bytes]
    return out

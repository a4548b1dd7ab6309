"""panel32.v1, the weight layout of the kernels: pack and unpack, numpy only.

The bit-exact description is docs/panel32.md. Bytes are the checkpoint's own, only moved, so pack
and unpack are exact inverses; what is added is zero rows up to the next whole panel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftengine.quant import bf16, f16, f32, q4_0, q4_1, q8_0
from ftengine.quant.base import Bytes, QuantFormat

LAYOUT = "panel32.v1"
PANEL_ROWS = 32
PAIR_ROWS = 16
PART_ALIGN_BYTES = 64
ROW_ALIGN_BYTES = 4096


@dataclass(frozen=True)
class PanelFormat:
    """How one format is cut in a panel.

    group_elements elements of a row (group_bytes bytes) are the smallest piece that is moved as a
    whole: first num_scales float16 values, then 4-byte words.
    """

    quant: QuantFormat
    group_elements: int
    group_bytes: int
    num_scales: int

    @property
    def words(self) -> int:
        """4-byte words of one row in one group."""
        return (self.group_bytes - 2 * self.num_scales) // 4


PANEL_FORMATS: tuple[PanelFormat, ...] = (
    PanelFormat(f32.FORMAT, 1, 4, 0),
    PanelFormat(f16.FORMAT, 2, 4, 0),
    PanelFormat(bf16.FORMAT, 2, 4, 0),
    PanelFormat(q8_0.FORMAT, 32, 34, 1),
    PanelFormat(q4_0.FORMAT, 32, 18, 1),
    PanelFormat(q4_1.FORMAT, 32, 20, 2),
)


@dataclass(frozen=True)
class ExpertLayout:
    """Where the two parts of a bank row lie. Units: bytes from the start of the row."""

    gate_up_offset: int
    down_offset: int
    row_bytes: int


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


def packed_bytes(fmt: QuantFormat | str, rows: int, cols: int, paired: bool = False) -> int:
    """Bytes of a packed matrix. For a pair, `rows` is the row count of gate (and of up).

    Raises: ValueError if cols does not fit the format.
    """
    panels = -(-rows // (PAIR_ROWS if paired else PANEL_ROWS))
    return panels * PANEL_ROWS * _row_bytes(panel_format(fmt), cols)


def pack(fmt: QuantFormat | str, raw_rows: Bytes) -> Bytes:
    """Lay out a matrix in panels. Shape: uint8 [rows, row_bytes] -> uint8 [packed_bytes].

    Raises: ValueError if the rows do not fit the format.
    """
    panel = panel_format(fmt)
    _check_rows(panel, raw_rows)
    rows, row_bytes = raw_rows.shape
    out = np.empty(-(-rows // PANEL_ROWS) * PANEL_ROWS * row_bytes, dtype=np.uint8)
    panels = out.reshape(-1, PANEL_ROWS * row_bytes)
    buffer = _panel_buffer(row_bytes)
    for index in range(panels.shape[0]):
        part = raw_rows[index * PANEL_ROWS : (index + 1) * PANEL_ROWS]
        buffer[: part.shape[0]] = part
        buffer[part.shape[0] :] = 0
        _pack_panel(panel, buffer, panels[index])
    return out


def pack_pair(fmt: QuantFormat | str, gate_rows: Bytes, up_rows: Bytes) -> Bytes:
    """Lay out gate and up as one matrix: panel p = 16 rows of gate, then the same 16 of up.

    Shape: two uint8 [rows, row_bytes] -> uint8 [packed_bytes(paired=True)].
    Raises: ValueError if the two differ in shape or do not fit the format.
    """
    panel = panel_format(fmt)
    _check_rows(panel, gate_rows)
    if gate_rows.shape != up_rows.shape or up_rows.dtype != np.uint8:
        raise ValueError(f"gate {gate_rows.shape} and up {up_rows.shape} must have one shape")
    rows, row_bytes = gate_rows.shape
    out = np.empty(-(-rows // PAIR_ROWS) * PANEL_ROWS * row_bytes, dtype=np.uint8)
    panels = out.reshape(-1, PANEL_ROWS * row_bytes)
    buffer = _panel_buffer(row_bytes)
    for index in range(panels.shape[0]):
        take = slice(index * PAIR_ROWS, (index + 1) * PAIR_ROWS)
        count = gate_rows[take].shape[0]
        for part, first in ((gate_rows[take], 0), (up_rows[take], PAIR_ROWS)):
            buffer[first : first + count] = part
            buffer[first + count : first + PAIR_ROWS] = 0
        _pack_panel(panel, buffer, panels[index])
    return out


def unpack(fmt: QuantFormat | str, packed: Bytes, rows: int, cols: int) -> Bytes:
    """Inverse of pack. Shape: uint8 [packed_bytes] -> uint8 [rows, row_bytes].

    Raises: ValueError if the size does not match.
    """
    panel = panel_format(fmt)
    panels = _panels_of(panel, packed, rows, cols, paired=False)
    out = np.empty((panels.shape[0], PANEL_ROWS, _row_bytes(panel, cols)), dtype=np.uint8)
    for index in range(panels.shape[0]):
        _unpack_panel(panel, panels[index], out[index])
    return out.reshape(-1, out.shape[-1])[:rows]


def unpack_pair(fmt: QuantFormat | str, packed: Bytes, rows: int, cols: int) -> tuple[Bytes, Bytes]:
    """Inverse of pack_pair. Shape: uint8 [packed_bytes] -> two uint8 [rows, row_bytes]."""
    panel = panel_format(fmt)
    panels = _panels_of(panel, packed, rows, cols, paired=True)
    row_bytes = _row_bytes(panel, cols)
    out = np.empty((panels.shape[0], 2, PAIR_ROWS, row_bytes), dtype=np.uint8)
    for index in range(panels.shape[0]):
        _unpack_panel(panel, panels[index], out[index].reshape(PANEL_ROWS, row_bytes))
    gate = np.ascontiguousarray(out[:, 0]).reshape(-1, row_bytes)[:rows]
    up = np.ascontiguousarray(out[:, 1]).reshape(-1, row_bytes)[:rows]
    return gate, up


def expert_layout(
    fmt_gate_up: QuantFormat | str, fmt_down: QuantFormat | str, hidden: int, inter: int
) -> ExpertLayout:
    """The bank row of one expert: gate_up [2 * inter, hidden], then down [hidden, inter].

    Raises: ValueError if a size does not fit its format.
    """
    gate_up = packed_bytes(fmt_gate_up, inter, hidden, paired=True)
    down_offset = _round_up(gate_up, PART_ALIGN_BYTES)
    end = down_offset + packed_bytes(fmt_down, hidden, inter)
    return ExpertLayout(0, down_offset, _round_up(end, ROW_ALIGN_BYTES))


def _round_up(value: int, align: int) -> int:
    return -(-value // align) * align


def _row_bytes(panel: PanelFormat, cols: int) -> int:
    if cols <= 0 or cols % panel.group_elements:
        raise ValueError(
            f"panel32 {panel.quant.name} needs a positive multiple of {panel.group_elements} "
            f"columns, got {cols}; keep this tensor in a format with smaller blocks"
        )
    return cols // panel.group_elements * panel.group_bytes


def _check_rows(panel: PanelFormat, rows: Bytes) -> None:
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[0] == 0:
        raise ValueError(f"panel32 packs uint8 [rows, row_bytes], got {rows.dtype} {rows.shape}")
    if rows.shape[1] == 0 or rows.shape[1] % panel.group_bytes:
        raise ValueError(
            f"panel32 {panel.quant.name} needs rows of a multiple of {panel.group_bytes} bytes "
            f"({panel.group_elements} columns), got {rows.shape[1]} bytes"
        )


def _panels_of(panel: PanelFormat, packed: Bytes, rows: int, cols: int, paired: bool) -> Bytes:
    expected = packed_bytes(panel.quant, rows, cols, paired)
    if packed.dtype != np.uint8 or packed.size != expected:
        raise ValueError(
            f"panel32 {panel.quant.name} [{rows}, {cols}] is {expected} bytes, got {packed.size}"
        )
    return np.ascontiguousarray(packed).reshape(-1, PANEL_ROWS * _row_bytes(panel, cols))


def _panel_buffer(row_bytes: int) -> Bytes:
    """Uint8 [32, row_bytes] whose rows start at different cache sets: f32 packs 3 times faster."""
    return np.empty((PANEL_ROWS, row_bytes + PART_ALIGN_BYTES), dtype=np.uint8)[:, :row_bytes]


def _pack_panel(panel: PanelFormat, rows: Bytes, out: Bytes) -> None:
    """Shape: rows uint8 [32, row_bytes] -> out uint8 [32 * row_bytes]."""
    groups = rows.reshape(PANEL_ROWS, -1, panel.group_bytes)
    target = out.reshape(groups.shape[1], PANEL_ROWS * panel.group_bytes)
    scale_bytes = 2 * panel.num_scales
    if panel.num_scales:
        scales = groups.view(np.uint16)[:, :, : panel.num_scales]
        target.view(np.uint16)[:, : PANEL_ROWS * panel.num_scales] = scales.transpose(
            1, 2, 0
        ).reshape(groups.shape[1], -1)
    quants = groups if scale_bytes == 0 else np.ascontiguousarray(groups[:, :, scale_bytes:])
    words = quants.view(np.uint32)
    place = target.view(np.uint32)[:, PANEL_ROWS * scale_bytes // 4 :]
    place.reshape(groups.shape[1], panel.words, PANEL_ROWS)[...] = words.transpose(1, 2, 0)


def _unpack_panel(panel: PanelFormat, source: Bytes, out: Bytes) -> None:
    """Shape: source uint8 [32 * row_bytes] -> out uint8 [32, row_bytes] contiguous."""
    groups = out.reshape(PANEL_ROWS, -1, panel.group_bytes)
    count = groups.shape[1]
    packed = source.reshape(count, PANEL_ROWS * panel.group_bytes)
    scale_bytes = 2 * panel.num_scales
    if panel.num_scales:
        scales = packed.view(np.uint16)[:, : PANEL_ROWS * panel.num_scales]
        shaped = scales.reshape(count, panel.num_scales, PANEL_ROWS)
        groups.view(np.uint16)[:, :, : panel.num_scales] = shaped.transpose(2, 0, 1)
    words = packed.view(np.uint32)[:, PANEL_ROWS * scale_bytes // 4 :]
    shaped_words = words.reshape(count, panel.words, PANEL_ROWS).transpose(2, 0, 1)
    groups[:, :, scale_bytes:] = np.ascontiguousarray(shaped_words).view(np.uint8)

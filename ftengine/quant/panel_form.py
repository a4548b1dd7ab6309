"""How one format is cut in a panel of 32 rows, and the bytes of one panel. See docs/panel32.md.

Whole matrices, pairs and experts are panel32.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftengine.quant import (
    bf16,
    f16,
    f32,
    fp8,
    mxfp4,
    nvfp4,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
)
from ftengine.quant.base import Bytes, QuantFormat

PANEL_ROWS = 32
PAIR_ROWS = 16
PART_ALIGN_BYTES = 64
_HALVES = PANEL_ROWS // PAIR_ROWS


@dataclass(frozen=True)
class PanelFormat:
    """How one format is cut in a panel.

    group_elements elements of a row (group_bytes bytes) are the smallest piece that is moved as a
    whole: num_scales scales of scale_bytes bytes each, then 4-byte words (scales_last: the other
    way round). `joined` groups are laid out together, their scales in front; a row that ends early
    is filled up with zero bytes.
    """

    quant: QuantFormat
    group_elements: int
    group_bytes: int
    num_scales: int
    scale_bytes: int = 2
    joined: int = 1
    scales_last: bool = False

    @property
    def all_scale_bytes(self) -> int:
        """Bytes of the scales of one row in one group."""
        return self.scale_bytes * self.num_scales

    @property
    def words(self) -> int:
        """4-byte words of one row in one group."""
        return (self.group_bytes - self.all_scale_bytes) // 4

    @property
    def shares_factors(self) -> bool:
        """Whether 16 rows have their float32 factors in common, and a panel holds two sets."""
        return self.quant.header is not None and self.quant.header.span > 0


def _parts(panel: PanelFormat) -> tuple[slice, slice]:
    """Where scales and words stand in a group."""
    size = panel.all_scale_bytes
    if panel.scales_last:
        first = panel.group_bytes - size
        return slice(first, None), slice(0, first)
    return slice(0, size), slice(size, None)


PANEL_FORMATS: tuple[PanelFormat, ...] = (
    PanelFormat(f32.FORMAT, 1, 4, 0),
    PanelFormat(f16.FORMAT, 2, 4, 0),
    PanelFormat(bf16.FORMAT, 2, 4, 0),
    PanelFormat(q8_0.FORMAT, 32, 34, 1),
    PanelFormat(q4_0.FORMAT, 32, 18, 1),
    PanelFormat(q4_1.FORMAT, 32, 20, 2),
    PanelFormat(q5_0.FORMAT, 32, 22, 1),
    PanelFormat(q5_1.FORMAT, 32, 24, 2),
    PanelFormat(q4_k.FORMAT, 256, 144, 2),
    PanelFormat(q5_k.FORMAT, 256, 176, 2),
    PanelFormat(q6_k.FORMAT, 256, 210, 1, scales_last=True),
    PanelFormat(mxfp4.FORMAT, 32, 17, 1, scale_bytes=1, joined=2),
    PanelFormat(mxfp4.GGUF_FORMAT, 32, 17, 1, scale_bytes=1, joined=2),
    PanelFormat(nvfp4.FORMAT, 16, 9, 1, scale_bytes=1, joined=2),
    PanelFormat(nvfp4.DIVIDED_FORMAT, 16, 9, 1, scale_bytes=1, joined=2),
    PanelFormat(fp8.TENSOR_FORMAT, 4, 4, 0),
    PanelFormat(fp8.BLOCK_FORMAT, 4, 4, 0),
    PanelFormat(fp8.BLOCK_E8M0_FORMAT, 4, 4, 0),
)


@dataclass(frozen=True)
class PanelShape:
    """One panel of a matrix of `cols` columns. Units: bytes; row_* are of one source row."""

    panel: PanelFormat
    row_header: int
    row_body: int
    panel_header: int
    row_filled: int
    """row_body up to whole joined groups."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a source row."""
        return self.row_header + self.row_body

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.panel_header + PANEL_ROWS * self.row_filled


def panel_shape(panel: PanelFormat, cols: int) -> PanelShape:
    """Sizes for rows of `cols` elements. Raises: ValueError where groups do not fit."""
    if cols <= 0 or cols % panel.group_elements:
        raise ValueError(
            f"panel32 {panel.quant.name} needs a positive multiple of {panel.group_elements} "
            f"columns, got {cols}; keep this tensor in a format with smaller blocks"
        )
    groups = cols // panel.group_elements
    header = panel.quant.header_bytes(cols)
    copies = _HALVES if panel.shares_factors else PANEL_ROWS
    return PanelShape(
        panel,
        row_header=header,
        row_body=groups * panel.group_bytes,
        panel_header=round_up(copies * header, PART_ALIGN_BYTES),
        row_filled=round_up(groups, panel.joined) * panel.group_bytes,
    )


def round_up(value: int, align: int) -> int:
    """The next multiple of `align`."""
    return -(-value // align) * align


def row_buffer(shape: PanelShape, panels: int = 1) -> Bytes:
    """Uint8 zeros [panels, 32, row_header + row_filled].

    Rows start at different cache sets, which makes packing f32 three times as fast.
    """
    width = shape.row_header + shape.row_filled
    return np.zeros((panels, PANEL_ROWS, width + PART_ALIGN_BYTES), dtype=np.uint8)[..., :width]


def pack_panels(shape: PanelShape, rows: Bytes, counts: tuple[int, int], out: Bytes) -> None:
    """Panels from their rows. Shape: rows as row_buffer -> out uint8 [panels, panel_bytes].

    counts: rows that exist of 0..15 and of 16..31; the others hold zero bytes.
    Raises: ValueError where rows that share their factors have different ones.
    """
    panel = shape.panel
    if shape.row_header:
        for one, into in zip(rows, out, strict=True):
            _pack_factors(shape, one[:, : shape.row_header], counts, into[: shape.panel_header])
    groups = _groups_of(panel, rows[..., shape.row_header :])
    size = (groups.shape[0], groups.shape[2])
    scale_bytes = panel.all_scale_bytes
    scale_part, word_part = _parts(panel)
    target = out[:, shape.panel_header :].reshape(*size, -1)
    all_scales = PANEL_ROWS * panel.joined * scale_bytes
    if panel.num_scales:
        unit = _scale_type(panel)
        scales = groups[..., scale_part].view(unit).transpose(0, 2, 3, 4, 1)
        target[..., :all_scales].view(unit)[...] = scales.reshape(*size, -1)
    words = groups[..., word_part].view(np.uint32)  # not aligned: faster than a copy that is
    place = target[..., all_scales:].view(np.uint32)
    place = place.reshape(*size, panel.joined, panel.words, PANEL_ROWS)
    place[...] = words.transpose(0, 2, 3, 4, 1)


def unpack_panel(shape: PanelShape, source: Bytes, out: Bytes) -> None:
    """Inverse of pack_panels, of one. Shape: source uint8 [panel_bytes] -> out [32, ...]."""
    panel = shape.panel
    if shape.row_header:
        _unpack_factors(shape, source[: shape.panel_header], out[:, : shape.row_header])
    groups = _groups_of(panel, out[:, shape.row_header :])
    count = groups.shape[1]
    scale_bytes = panel.all_scale_bytes
    scale_part, word_part = _parts(panel)
    packed = source[shape.panel_header :].reshape(count, -1)
    all_scales = PANEL_ROWS * panel.joined * scale_bytes
    if panel.num_scales:
        scales = packed[:, :all_scales].view(_scale_type(panel))
        shaped = scales.reshape(count, panel.joined, panel.num_scales, PANEL_ROWS)
        groups[..., scale_part].view(_scale_type(panel))[...] = shaped.transpose(3, 0, 1, 2)
    words = packed[:, all_scales:].view(np.uint32)
    shaped_words = words.reshape(count, panel.joined, panel.words, PANEL_ROWS)
    moved = shaped_words.transpose(3, 0, 1, 2)
    if scale_bytes:
        groups[..., word_part] = np.ascontiguousarray(moved).view(np.uint8)
    else:
        groups.view(np.uint32)[...] = moved


def _scale_type(panel: PanelFormat) -> type[np.uint8] | type[np.uint16]:
    return np.uint8 if panel.scale_bytes == 1 else np.uint16


def _groups_of(panel: PanelFormat, body: Bytes) -> Bytes:
    """A view. Shape: uint8 [..., 32, row_filled] -> [..., 32, groups / joined, joined, bytes]."""
    count = body.shape[-1] // (panel.joined * panel.group_bytes)
    row, byte = body.strides[-2:]
    return np.lib.stride_tricks.as_strided(
        body,
        shape=(*body.shape[:-1], count, panel.joined, panel.group_bytes),
        strides=(
            *body.strides[:-2],
            row,
            panel.joined * panel.group_bytes * byte,
            panel.group_bytes * byte,
            byte,
        ),
    )


def _pack_factors(
    shape: PanelShape, factors: Bytes, counts: tuple[int, int], header: Bytes
) -> None:
    values = np.ascontiguousarray(factors).view(np.uint32)
    header[...] = 0
    place = header.view(np.uint32)
    if not shape.panel.shares_factors:
        place[:PANEL_ROWS] = values[:, 0]
        return
    for half, count in enumerate(counts):
        rows = values[half * PAIR_ROWS : half * PAIR_ROWS + count]
        if count == 0:
            continue
        if not bool((rows == rows[0]).all()):
            raise ValueError(
                f"panel32 {shape.panel.quant.name}: rows 16n .. 16n + 15 must share their scales; "
                "do not join matrices whose row counts are no multiples of 16"
            )
        place[half : _HALVES * rows.shape[1] : _HALVES] = rows[0]


def _unpack_factors(shape: PanelShape, header: Bytes, factors: Bytes) -> None:
    place = header.view(np.uint32)
    if not shape.panel.shares_factors:
        factors[...] = place[:PANEL_ROWS].view(np.uint8).reshape(PANEL_ROWS, 4)
        return
    for half in range(_HALVES):
        values = np.ascontiguousarray(place[half : shape.row_header // 4 * _HALVES : _HALVES])
        factors[half * PAIR_ROWS : (half + 1) * PAIR_ROWS] = values.view(np.uint8)

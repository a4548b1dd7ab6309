"""The bytes of one expert's part out of the pieces of the checkpoint that make it up."""

from __future__ import annotations

import numpy as np

from ftengine.convert.bank_plan import ROWS_LAYOUT
from ftengine.convert.pieces import Piece
from ftengine.convert.source import FACTOR, SCALES
from ftengine.errors import LoadError
from ftengine.loader.ftw import FtwPart
from ftengine.loader.joined import Scales, joined_rows
from ftengine.loader.stored import SCALE_FORMATS
from ftengine.models.weight_names import BIAS_HALVES, BIAS_PARTS
from ftengine.quant import format_named, nvfp4, panel32
from ftengine.quant.base import Bytes

_COLUMNS, _IN_TURN = "columns", "in_turn"

Members = list[tuple[Piece, bytearray]]


def packed_part(part: FtwPart, members: Members) -> Bytes:
    """A part as the bank holds it: panels, or plain rows. Shape: -> uint8 [part.bytes].

    members: the pieces of the part, in any order.
    """
    if part.name in BIAS_PARTS:
        return _vector(part, members)
    if part.name != "gate_up":
        rows = _rows(part, members, part.name)
        return rows.reshape(-1) if _is_plain(part) else panel32.pack(part.format, rows)
    if members[0][0].part == "gate_up":
        both = _rows(part, members, "gate_up")
        gate, up = _apart(both, members[0][0].order)
    else:
        gate, up = _rows(part, members, "gate"), _rows(part, members, "up")
    if _is_plain(part):
        return np.concatenate([gate.reshape(-1), up.reshape(-1)])
    return panel32.pack_pair(part.format, gate, up)


def _vector(part: FtwPart, members: Members) -> Bytes:
    """A bias; that of gate before that of up. Shape: uint8 [part.bytes]."""
    halves = {piece.part: np.frombuffer(data, np.uint8) for piece, data in members}
    if len(halves) == len(BIAS_HALVES):
        return np.concatenate([halves[name] for name in BIAS_HALVES])
    piece, data = members[0]
    items = np.frombuffer(data, np.uint8).reshape(part.shape[0], -1)
    if piece.order != _IN_TURN:
        return items.reshape(-1)
    return np.concatenate(_apart(items, piece.order)).reshape(-1)


def _apart(rows: Bytes, order: str) -> tuple[Bytes, Bytes]:
    """gate and up out of the rows of both."""
    if order.endswith(_IN_TURN):
        return np.ascontiguousarray(rows[0::2]), np.ascontiguousarray(rows[1::2])
    half = rows.shape[0] // 2
    return rows[:half], rows[half:]


def _is_plain(part: FtwPart) -> bool:
    return part.layout == ROWS_LAYOUT


def _rows(part: FtwPart, members: Members, name: str) -> Bytes:
    """Rows of one matrix, its scales in them. Shape: uint8 [rows, row_bytes]."""
    found = {
        piece.role: (piece, np.frombuffer(data, np.uint8))
        for piece, data in members
        if piece.part == name
    }
    piece, codes = found[""]
    if piece.order.startswith(_COLUMNS):
        item = format_named(part.format).block_bytes
        turned = codes.reshape(part.shape[1], part.shape[0], item).swapaxes(0, 1)
        return np.ascontiguousarray(turned).reshape(part.shape[0], -1)
    if piece.blocks:
        given = found[FACTOR][1].view("<f4") if FACTOR in found else 1.0
        return nvfp4.join_rows(*nvfp4.split_ggml(codes.reshape(-1, piece.row_bytes)), given)
    if piece.format not in SCALE_FORMATS:
        return codes.reshape(-1, piece.row_bytes)
    count = part.shape[0] // 2 if name in ("gate", "up") else part.shape[0]
    scale, scale_data = found[SCALES]
    factor = found[FACTOR][1] if FACTOR in found else None
    shape = (count, part.shape[1])
    try:
        return joined_rows(piece.format, shape, codes, Scales(scale_data, scale.format), factor)
    except ValueError as error:
        raise LoadError(
            f"{piece.name}: {name} of expert {piece.expert} cannot be taken over exactly: {error}; "
            "use another release",
            code="unsupported_format",
        ) from None

"""The bytes of one expert's part out of the pieces of the checkpoint that make it up."""

from __future__ import annotations

import numpy as np

from ftengine.convert.bank_plan import ROWS_LAYOUT
from ftengine.convert.pieces import Piece
from ftengine.convert.source import FACTOR, SCALES
from ftengine.loader.ftw import FtwPart
from ftengine.loader.joined import Scales, joined_rows
from ftengine.loader.stored import SCALE_FORMATS
from ftengine.quant import panel32
from ftengine.quant.base import Bytes

Members = list[tuple[Piece, bytearray]]


def packed_part(part: FtwPart, members: Members) -> Bytes:
    """A part as the bank holds it: panels, or plain rows. Shape: -> uint8 [part.bytes].

    members: the pieces of the part, in any order.
    """
    if part.name == "down":
        rows = _rows(part, members, "down")
        return rows.reshape(-1) if _is_plain(part) else panel32.pack(part.format, rows)
    if members[0][0].part == "gate_up":
        both = _rows(part, members, "gate_up")
        gate, up = both[: part.shape[0] // 2], both[part.shape[0] // 2 :]
    else:
        gate, up = _rows(part, members, "gate"), _rows(part, members, "up")
    if _is_plain(part):
        return np.concatenate([gate.reshape(-1), up.reshape(-1)])
    return panel32.pack_pair(part.format, gate, up)


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
    if part.format not in SCALE_FORMATS:
        return codes.reshape(-1, piece.row_bytes)
    count = part.shape[0] if name == "down" else part.shape[0] // 2
    scale, scale_data = found[SCALES]
    factor = found[FACTOR][1] if FACTOR in found else None
    shape = (count, part.shape[1])
    return joined_rows(part.format, shape, codes, Scales(scale_data, scale.format), factor)

"""A prefill by whole layers on a device, planned before its first copy: pieces, slots, lookups.

Nothing is admitted while it runs, so all of it is known from the tables as they are. Copies and
their order are on_gpu/pipe.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftengine.experts.policy.mirror import NOBODY, Mirror

_ALIGN = 4
"""Rows of the table begin at multiples of 16 bytes."""


@dataclass(frozen=True)
class Piece:
    """What one buffer holds of a layer. row: of the plan's table; half: which buffer.

    places: (expert, lent slot) of what must be copied, in rising order.
    """

    layer: int
    row: int
    half: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StreamPlan:
    """Pieces of each layer, and per piece the slot of every expert that it computes.

    Shape: table int32 [pieces, at least num_experts], below 0 = another piece's, or nobody's.
    """

    layers: tuple[tuple[Piece, ...], ...]
    table: npt.NDArray[np.int32]

    def after(self, piece: Piece) -> Piece | None:
        """The next one."""
        row = piece.row + 1
        for layer in self.layers[piece.layer :]:
            for item in layer:
                if item.row == row:
                    return item
        return None


def plan_stream(mirror: Mirror, lent: Sequence[int]) -> StreamPlan:
    """Cut every layer's missing experts into pieces for two buffers.

    lent: the buffers' slots, half of them each; none = only what is resident, one piece a layer.
    """
    size = len(lent) // 2
    halves = tuple(lent[:size]), tuple(lent[size : 2 * size])
    layers: list[tuple[Piece, ...]] = []
    rows: list[npt.NDArray[np.int32]] = []
    for layer in range(mirror.num_layers):
        resident = mirror.slots_of(layer)
        pieces: list[Piece] = []
        for experts in _cut(np.flatnonzero(resident < 0).tolist() if size else [], size):
            half = len(rows) % 2
            places = tuple(zip(experts, halves[half], strict=False))
            row = np.full(_padded(mirror.num_experts), NOBODY, np.int32)
            if not pieces:
                row[: mirror.num_experts] = resident
            for expert, slot in places:
                row[expert] = slot
            pieces.append(Piece(layer, len(rows), half, places))
            rows.append(row)
        layers.append(tuple(pieces))
    return StreamPlan(tuple(layers), np.stack(rows))


def runs(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Neighbours that one copy can take together: first expert, first slot, how many."""
    start = 0
    for at in range(1, len(places) + 1):
        ends = at == len(places)
        if not ends:
            expert, slot = places[at - 1]
            ends = places[at] != (expert + 1, slot + 1)
        if ends:
            yield (*places[start], at - start)
            start = at


def _cut(experts: list[int], size: int) -> list[list[int]]:
    """One empty piece for none."""
    if not experts:
        return [[]]
    return [experts[at : at + size] for at in range(0, len(experts), size)]


def _padded(num_experts: int) -> int:
    return -(-num_experts // _ALIGN) * _ALIGN

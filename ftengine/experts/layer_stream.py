"""Prefill by whole layers: while one piece computes, the missing experts of the next are copied.

Two buffers are borrowed from the slot pool's coldest slots for the length of a step. A piece is
what one buffer holds: a layer's missing experts, or a part of them where the pool is small.
Experts that are resident are used where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ftengine.experts.counters import LayerCounters
from ftengine.experts.partials import PairKernel, Routed, SharedWork, merge, slot_rows
from ftengine.experts.policy.residency import Residency
from ftengine.experts.slots import SlotPool
from ftengine.experts.transfer import Copies, Transfer


@dataclass(frozen=True)
class _Piece:
    """Experts whose copies are under way. places: expert -> borrowed slot."""

    layer: int
    places: dict[int, int]
    copies: Copies


class LayerStream:
    """Active from begin to end; at most one step long."""

    def __init__(
        self,
        residency: Residency,
        slots: SlotPool,
        transfer: Transfer,
        kernel: PairKernel,
        counters: Sequence[LayerCounters],
    ) -> None:
        self._residency = residency
        self._slots = slots
        self._transfer = transfer
        self._kernel = kernel
        self._counters = counters
        self._halves: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._turn = 0
        self._ahead: _Piece | None = None
        self._holding: dict[int, tuple[int, int]] = {}

    @property
    def active(self) -> bool:
        """Whether this step goes by whole layers."""
        return bool(self._halves[0])

    def begin(self, experts_per_buffer: int) -> None:
        """Borrow two buffers of so many experts."""
        borrowed = self._residency.borrow(2 * experts_per_buffer)
        self._halves = borrowed[:experts_per_buffer], borrowed[experts_per_buffer:]

    def run(self, layer: int, routed: Routed, shared: SharedWork) -> None:
        """One layer: for each piece start the next one's copies, wait for its own, compute.

        The shared experts are computed before the first wait.
        """
        pieces = self._pieces(layer)
        ahead = self._ahead
        if ahead is None or ahead.layer != layer:
            ahead = self._start(layer, pieces[0])
        parts = None
        if len(pieces) > 1:
            parts = torch.empty(routed.num_pairs, routed.x.shape[1])
        for number in range(len(pieces)):
            self._ahead = self._start_next(layer, pieces, number)
            shared.compute()
            self._transfer.wait(layer, ahead.copies)
            for expert, slot in ahead.places.items():
                self._holding[slot] = (layer, expert)
            where = dict(ahead.places)
            if number == 0:
                where |= self._residency.slots_of(layer)
            self._compute(layer, routed, where, parts)
            if self._ahead is not None:
                ahead = self._ahead
        if parts is not None:
            merge(routed, parts)
        if layer + 1 == len(self._counters):
            self.end()

    def end(self) -> None:
        """Give the buffers back, with the experts they still hold; nothing stays in flight."""
        if not self.active:
            return
        if self._ahead is not None:
            self._transfer.drain()
        self._residency.give_back((*self._halves[0], *self._halves[1]), self._holding)
        self.forget()

    def forget(self) -> None:
        """Drop all state; after an error the caller empties the residency."""
        self._halves, self._ahead, self._holding = ((), ()), None, {}

    def _pieces(self, layer: int) -> list[list[int]]:
        """A layer's missing experts, cut to the size of a buffer; one empty piece for none.

        The same answer for the whole step: nothing is admitted while streaming.
        """
        resident = self._residency.slots_of(layer)
        missing = [
            expert for expert in range(self._residency.num_experts) if expert not in resident
        ]
        size = len(self._halves[0])
        return [missing[at : at + size] for at in range(0, len(missing), size)] or [[]]

    def _start_next(self, layer: int, pieces: list[list[int]], number: int) -> _Piece | None:
        if number + 1 < len(pieces):
            return self._start(layer, pieces[number + 1])
        if layer + 1 < len(self._counters):
            return self._start(layer + 1, self._pieces(layer + 1)[0])
        return None

    def _start(self, layer: int, experts: Sequence[int]) -> _Piece:
        """Copy into the half whose last piece has been computed."""
        half = self._halves[self._turn]
        self._turn = 1 - self._turn
        for slot in half:
            self._holding.pop(slot, None)
        places = dict(zip(experts, half, strict=False))
        self._counters[layer].streamed += len(places)
        return _Piece(layer, places, self._transfer.start(layer, places.items()))

    def _compute(
        self, layer: int, routed: Routed, where: Mapping[int, int], parts: torch.Tensor | None
    ) -> None:
        bank = self._slots.bank(layer)
        if parts is None:
            self._kernel.add_all(routed, slot_rows(routed, where), bank)
        else:
            self._kernel.compute(routed, where, bank, parts)

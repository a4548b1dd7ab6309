"""A device's tables of slots as the host changes them between steps: lending, returning, resizing.

During decode steps the device itself keeps these tables (kernels/triton/admission.py); the host
reads them back when a prefill or a resize begins. The meaning of each is residency.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

FREE = -(1 << 40)
"""Stamps of free slots begin here: below any resident's."""
LENT = 1 << 46
"""Stamp of a slot that is lent to a prefill: no victim."""
NOBODY = -1

Ints = npt.NDArray[np.int32]
Stamps = npt.NDArray[np.int64]


class Mirror:
    """slot_of [layers * experts], owner_of and stamp_of [slots]: changed in place.

    owner_of holds layer * num_experts + expert. A slot of lower stamp is evicted first.
    """

    def __init__(self, num_experts: int, slot_of: Ints, owner_of: Ints, stamp_of: Stamps) -> None:
        self.num_experts = num_experts
        self.num_layers = slot_of.size // num_experts
        self.num_slots = owner_of.size
        self._slot_of = slot_of
        self._owner_of = owner_of
        self._stamp_of = stamp_of

    @property
    def num_resident(self) -> int:
        """Experts that lie in slots."""
        return int(np.count_nonzero(self._owner_of >= 0))

    def available(self, in_use: Collection[int]) -> int:
        """Slots that are neither in use nor lent out."""
        lent = set(np.flatnonzero(self._stamp_of == LENT).tolist())
        return self.num_slots - len(lent.union(slot for slot in in_use if slot < self.num_slots))

    def slots_of(self, layer: int) -> Ints:
        """Slot of each expert of a layer, below 0 = none. Shape: int32 [num_experts]."""
        start = layer * self.num_experts
        found: Ints = self._slot_of[start : start + self.num_experts].copy()
        return found

    def lend(self, count: int) -> tuple[int, ...]:
        """Take `count` slots for a prefill, free ones first, then the coldest; in rising order.

        Raises: ValueError when fewer slots are there.
        """
        if not 0 <= count <= self.available(()):
            raise ValueError(f"{count} slots asked for, {self.available(())} can be borrowed")
        slots = np.sort(np.argsort(self._stamp_of, kind="stable")[:count])
        self._clear(slots)
        self._stamp_of[slots] = LENT
        return tuple(slots.tolist())

    def give_back(self, slots: Sequence[int], holding: Mapping[int, tuple[int, int]]) -> None:
        """Return lent slots; those that hold (layer, expert) become the coldest residents."""
        coldest = int(self._stamp_of[self._owner_of >= 0].min(initial=0))
        for slot in slots:
            if self._stamp_of[slot] != LENT:
                raise ValueError(f"slot {slot} is not lent out")
            self._stamp_of[slot] = FREE + slot
            if slot in holding:
                coldest -= 1
                self.place(holding[slot], slot, coldest)

    def place(self, expert: tuple[int, int], slot: int, stamp: int) -> None:
        """Put (layer, expert) into a slot that nobody owns."""
        number = expert[0] * self.num_experts + expert[1]
        if self._slot_of[number] >= 0 or self._owner_of[slot] >= 0:
            raise ValueError(f"expert {expert} or slot {slot} is taken already")
        self._slot_of[number], self._owner_of[slot], self._stamp_of[slot] = slot, number, stamp

    def drop_all(self) -> None:
        """Nothing is resident and nothing lent any more."""
        self._slot_of.fill(NOBODY)
        self._owner_of.fill(NOBODY)
        self._stamp_of[:] = FREE + np.arange(self.num_slots)

    def moved_to(self, other: Mirror) -> list[tuple[int, int]]:
        """Carry the warmest residents over to empty tables of another size.

        Returns (from slot, to slot) of each; those whose place still exists keep it.
        """
        owned = np.flatnonzero(self._owner_of >= 0)
        warmest = owned[np.argsort(-self._stamp_of[owned], kind="stable")][: other.num_slots]
        stay = [slot for slot in warmest.tolist() if slot < other.num_slots]
        taken = set(stay)
        holes = (slot for slot in range(other.num_slots) if slot not in taken)
        places = [(slot, slot) for slot in stay]
        places += [(s, next(holes)) for s in warmest.tolist() if s >= other.num_slots]
        for source, target in places:
            number = int(self._owner_of[source])
            expert = divmod(number, self.num_experts)
            other.place(expert, target, int(self._stamp_of[source]))
        return places

    def check(self) -> None:
        """Assert that the tables agree; for tests."""
        for slot in np.flatnonzero(self._owner_of >= 0).tolist():
            assert self._slot_of[self._owner_of[slot]] == slot
        assert np.count_nonzero(self._slot_of >= 0) == self.num_resident

    def _clear(self, slots: npt.NDArray[np.int64]) -> None:
        owners = self._owner_of[slots]
        self._slot_of[owners[owners >= 0]] = NOBODY
        self._owner_of[slots] = NOBODY

"""Which experts lie in device slots: lookup, victims, prefill buffers, resizing. Bookkeeping only.

No bytes move here and no time is read. The tables are the specification of the device-side ones:
`last` is one integer per (layer, expert), `slot` and `owner` are each other's inverse.
What to fill and how much belongs to planner.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ftengine.experts.policy.demand import Demand

Expert = tuple[int, int]
"""(layer, expert number)."""
COLD_PART = 8
"""The coldest slots are this fraction of the pool."""
_COLD_EVERY = 64
"""Lookups between two looks at where the coldest part begins."""


@dataclass(frozen=True)
class Signs:
    """What one lookup tells about the worth of fills; planner.py adds them up.

    regrets: misses that would be hits now had they been filled when last demanded. cold_hits: hits
    among the coldest eighth of the slots: what evictions cost. warming: slots are free, so that a
    fill evicts nothing. worthy: misses, first ones of fill_order, that were demanded more often
    lately than what their fill would evict.
    """

    regrets: int
    cold_hits: int
    warming: bool
    worthy: int


@dataclass(frozen=True)
class Lookup:
    """One layer's routed experts, each once, in order of first appearance.

    hits: (expert, slot). fill_order: the misses again, best candidates for a fill first: those
    demanded most often lately, before this step; ties in order of appearance.
    """

    hits: tuple[tuple[int, int], ...]
    misses: tuple[int, ...]
    fill_order: tuple[int, ...] = ()
    signs: Signs | None = None


@dataclass(frozen=True)
class Fill:
    """Copy `expert` of the admitted layer into `slot`; evicted: (layer, expert) that left it."""

    expert: int
    slot: int
    evicted: Expert | None


@dataclass(frozen=True)
class Move:
    """Copy a slot's bytes to another slot of the smaller pool before the old one is dropped."""

    expert: Expert
    from_slot: int
    to_slot: int


@dataclass(frozen=True)
class Resized:
    """What a resize asks for: experts that left, and slots whose bytes must move."""

    evicted: tuple[Expert, ...]
    moves: tuple[Move, ...]


class Residency:
    """Slots shared by all layers, least recently demanded out first.

    Raises: ValueError for counts that make no sense.
    """

    def __init__(self, num_layers: int, num_experts: int, num_slots: int) -> None:
        if num_layers < 1 or num_experts < 1 or num_slots < 0:
            raise ValueError(
                f"{num_layers} layers, {num_experts} experts and {num_slots} slots: layers and "
                "experts must be at least 1, slots at least 0"
            )
        self.num_layers = num_layers
        self.num_experts = num_experts
        self.num_slots = num_slots
        self._step = 0
        self._cold_step = 0
        self._last: dict[Expert, int] = {}
        self._demand = Demand(num_layers)
        # Coldest first; every lookup moves its hits to the end.
        self._slot: OrderedDict[Expert, int] = OrderedDict()
        self._owner: dict[int, Expert] = {}
        self._free = list(range(num_slots - 1, -1, -1))
        self._borrowed: set[int] = set()

    @property
    def num_resident(self) -> int:
        """Experts that lie in slots now."""
        return len(self._slot)

    @property
    def num_borrowed(self) -> int:
        """Slots lent out as prefill buffers."""
        return len(self._borrowed)

    def resident(self) -> list[tuple[int, int, int]]:
        """(layer, expert, slot) of everything resident, coldest first."""
        return [(layer, expert, slot) for (layer, expert), slot in self._slot.items()]

    def slots_of(self, layer: int) -> dict[int, int]:
        """Expert to slot of one layer, without touching recency: what a prefill asks."""
        found = ((e, self._slot.get((layer, e))) for e in range(self.num_experts))
        return {expert: slot for expert, slot in found if slot is not None}

    def last_demand(self, layer: int, expert: int) -> int:
        """Step of the last lookup that named this expert; 0 for never."""
        return self._last.get((layer, expert), 0)

    def lookup(self, layer: int, expert_ids: Iterable[int]) -> Lookup:
        """Deduplicate the routed ids, tell hits from misses, note the demand for all of them.

        Raises: ValueError for a layer or expert that does not exist.
        """
        distinct = tuple(dict.fromkeys(expert_ids))
        self._check(layer, distinct)
        self._step += 1
        hits: list[tuple[int, int]] = []
        misses: list[int] = []
        cold_hits = 0
        if self._step % _COLD_EVERY == 0:
            self._cold_step = self._find_cold_step()
        for expert in distinct:
            slot = self._slot.get((layer, expert))
            if slot is None:
                misses.append(expert)
            else:
                hits.append((expert, slot))
                cold_hits += self._last.get((layer, expert), 0) < self._cold_step
                self._slot.move_to_end((layer, expert))
        counts = {expert: self._demand.of((layer, expert), self._step) for expert in misses}
        order = sorted(misses, key=lambda expert: -counts[expert])
        worthy = self._worthy([counts[expert] for expert in order], {slot for _, slot in hits})
        oldest = self._oldest_kept()
        regrets = sum(self.last_demand(layer, expert) > oldest for expert in misses)
        signs = Signs(regrets, cold_hits, bool(self._free), worthy)
        for expert in distinct:
            self._last[(layer, expert)] = self._step
            self._demand.note((layer, expert), self._step)
        return Lookup(tuple(hits), tuple(misses), tuple(order), signs)

    def available(self, in_use: Collection[int]) -> int:
        """Slots that `admit` could fill now: neither in use nor lent out."""
        held = self._borrowed.union(slot for slot in in_use if slot < self.num_slots)
        return self.num_slots - len(held)

    def admit(
        self, layer: int, experts: Sequence[int], in_use: Collection[int]
    ) -> tuple[Fill, ...]:
        """Give each expert a slot: free ones first, then the coldest whose slot is not in use.

        Raises: ValueError when there are too few slots, or an expert is named twice or resident.
        """
        self._check(layer, experts)
        if len(set(experts)) != len(experts):
            raise ValueError(f"layer {layer}: an expert is admitted twice in {list(experts)}")
        for expert in experts:
            if (layer, expert) in self._slot:
                raise ValueError(f"layer {layer}: expert {expert} is resident already")
        room = self.available(in_use)
        if len(experts) > room:
            raise ValueError(
                f"layer {layer}: {len(experts)} fills asked for, {room} of {self.num_slots} slots "
                "can be had; fill fewer or run in passes"
            )
        taken = self._take(len(experts), set(in_use))
        fills = []
        for expert, (slot, evicted) in zip(experts, taken, strict=True):
            self._place((layer, expert), slot)
            fills.append(Fill(expert, slot, evicted))
        return tuple(fills)

    def borrow(self, count: int) -> tuple[int, ...]:
        """Lend `count` slots as prefill buffers, free ones first, then the coldest.

        Raises: ValueError when fewer slots are there.
        """
        if count < 0 or count > self.available(()):
            raise ValueError(f"{count} slots asked for, {self.available(())} can be borrowed")
        slots = tuple(slot for slot, _ in self._take(count, set()))
        self._borrowed.update(slots)
        return slots

    def give_back(self, slots: Iterable[int], holding: Mapping[int, Expert] | None = None) -> None:
        """Return borrowed slots. holding: slot to the expert whose bytes it still carries.

        Experts kept this way count as demanded when they last were, so a prefill's leftovers are
        evicted before the working set of decoding.
        Raises: ValueError for a slot that is not lent out, or an expert resident elsewhere.
        """
        kept = dict(holding or {})
        for slot in slots:
            if slot not in self._borrowed:
                raise ValueError(f"slot {slot} is not lent out")
            expert = kept.pop(slot, None)
            if expert is not None and expert in self._slot:
                raise ValueError(f"expert {expert} is resident in slot {self._slot[expert]}")
            self._borrowed.remove(slot)
            if expert is None:
                self._free.append(slot)
            else:
                self._place(expert, slot)
                self._slot.move_to_end(expert, last=False)
        if kept:
            raise ValueError(f"slots {sorted(kept)} are not among those given back")

    def resize(self, num_slots: int) -> Resized:
        """Change the pool. Shrinking drops the coldest; survivors beyond the new end move.

        Raises: ValueError while slots are lent out, or for a negative size.
        """
        if num_slots < 0:
            raise ValueError(f"a pool of {num_slots} slots cannot be")
        if self._borrowed:
            raise ValueError(f"{len(self._borrowed)} slots are lent to a prefill; resize after it")
        evicted = []
        while len(self._slot) > num_slots:
            expert, slot = self._slot.popitem(last=False)
            del self._owner[slot]
            evicted.append(expert)
        self.num_slots = num_slots
        holes = iter([slot for slot in range(num_slots) if slot not in self._owner])
        moves = []
        for slot in sorted(slot for slot in self._owner if slot >= num_slots):
            expert, target = self._owner.pop(slot), next(holes)
            self._slot[expert] = target
            self._owner[target] = expert
            moves.append(Move(expert, slot, target))
        self._free = [s for s in range(num_slots - 1, -1, -1) if s not in self._owner]
        return Resized(tuple(evicted), tuple(moves))

    def drop_all(self) -> None:
        """Forget every resident expert and every borrowed slot; demand history stays."""
        self._slot.clear()
        self._owner.clear()
        self._borrowed.clear()
        self._free = list(range(self.num_slots - 1, -1, -1))

    def check(self) -> None:
        """Assert that the tables agree; for tests and idle self checks."""
        assert {slot: expert for expert, slot in self._slot.items()} == self._owner
        every = [*self._owner, *self._free, *self._borrowed]
        assert sorted(every) == list(range(self.num_slots)), "a slot is lost or held twice"

    def _worthy(self, counts: Sequence[float], in_use: Collection[int]) -> int:
        """How many of these, best first, beat the residents that `admit` would evict for them."""
        if self._free:
            return len(counts)
        victims = (expert for expert, slot in self._slot.items() if slot not in in_use)
        worthy = 0
        for count, victim in zip(counts, victims, strict=False):
            if count <= self._demand.of(victim, self._step):
                break
            worthy += 1
        return worthy

    def _find_cold_step(self) -> int:
        """Last demand of the warmest expert in the coldest eighth; 0 while slots are free."""
        place = len(self._slot) // COLD_PART
        if self._free or not place:
            return 0
        return self._last.get(next(islice(self._slot, place, None)), 0)

    def _oldest_kept(self) -> int:
        """Last demand of the coldest resident; 0 while slots are free."""
        if self._free or not self._slot:
            return 0
        return self._last.get(next(iter(self._slot)), 0)

    def _take(self, count: int, in_use: set[int]) -> list[tuple[int, Expert | None]]:
        """Free `count` slots and return them with what left; the caller checked the room."""
        taken: list[tuple[int, Expert | None]] = []
        blocked = []
        while len(taken) < count and self._free:
            slot = self._free.pop()
            if slot in in_use:
                blocked.append(slot)
            else:
                taken.append((slot, None))
        self._free.extend(reversed(blocked))
        victims: list[tuple[int, Expert]] = []
        for expert, slot in self._slot.items():
            if len(taken) + len(victims) == count:
                break
            if slot not in in_use:
                victims.append((slot, expert))
        for slot, expert in victims:
            del self._slot[expert]
            del self._owner[slot]
        return [*taken, *victims]

    def _place(self, expert: Expert, slot: int) -> None:
        self._slot[expert] = slot
        self._owner[slot] = expert

    def _check(self, layer: int, experts: Iterable[int]) -> None:
        if not 0 <= layer < self.num_layers:
            raise ValueError(f"layer {layer} of {self.num_layers} does not exist")
        for expert in experts:
            if not 0 <= expert < self.num_experts:
                raise ValueError(
                    f"layer {layer}: expert {expert} of {self.num_experts} does not exist"
                )

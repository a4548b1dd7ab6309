"""Residency against a reference that keeps plain lists and scans them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftengine.experts.policy.residency import Residency, Signs

LAYERS, EXPERTS = 3, 6


class Reference:
    """Stamps and scans: no order is kept anywhere."""

    def __init__(self, num_slots: int) -> None:
        self.slots: list[tuple[int, int] | None] = [None] * num_slots
        self.lent: set[int] = set()
        self.stamp: dict[tuple[int, int], int] = {}
        self.step = 0

    def lookup(self, layer: int, ids: list[int]) -> tuple[set[int], list[int]]:
        """Hits as a set, misses in order."""
        self.step += 1
        hits, misses = set(), []
        for expert in ids:
            if (layer, expert) in self.slots:
                hits.add(expert)
            elif expert not in misses:
                misses.append(expert)
            self.stamp[(layer, expert)] = self.step
        return hits, misses

    def coldest(self, in_use: set[int]) -> set[int]:
        """Slots any of which may be the next victim: free ones, else those of the oldest stamp."""
        usable = [s for s in range(len(self.slots)) if s not in in_use and s not in self.lent]
        free = {s for s in usable if self.slots[s] is None}
        if free:
            return free
        ages = {s: self.stamp.get(self.slots[s] or (0, 0), 0) for s in usable}
        return {s for s in usable if ages[s] == min(ages.values())}


def assert_same(ours: Residency, reference: Reference) -> None:
    """Both hold the same experts in the same slots, and our tables agree."""
    ours.check()
    assert {slot: (layer, e) for layer, e, slot in ours.resident()} == {
        slot: expert for slot, expert in enumerate(reference.slots) if expert is not None
    }


STEP = st.tuples(
    st.sampled_from(["step", "step", "step", "borrow", "give_back", "resize"]),
    st.integers(0, LAYERS - 1),
    st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=5),
    st.integers(0, 9),
)


def run_step(ours: Residency, reference: Reference, layer: int, ids: list[int], fills: int) -> None:
    """Lookup, then admit some of the misses, each victim checked against the reference."""
    found = ours.lookup(layer, ids)
    hits, misses = reference.lookup(layer, ids)
    assert {expert for expert, _ in found.hits} == hits
    assert list(found.misses) == misses
    assert sorted(found.fill_order) == sorted(misses)
    in_use = {slot for _, slot in found.hits}
    chosen = found.fill_order[: min(fills, ours.available(in_use))]
    for fill in ours.admit(layer, chosen, in_use):
        assert fill.slot not in in_use
        assert fill.slot in reference.coldest(in_use)
        assert fill.evicted == reference.slots[fill.slot]
        reference.slots[fill.slot] = (layer, fill.expert)
        in_use.add(fill.slot)


def run_resize(ours: Residency, reference: Reference, size: int) -> None:
    """Shrink or grow; the hottest survive and keep their slot where it still exists."""
    before = {slot: e for slot, e in enumerate(reference.slots) if e is not None}
    result = ours.resize(size)
    assert len(result.evicted) == max(0, len(before) - size)
    stay = [e for e in before.values() if e not in result.evicted]
    if result.evicted and stay:
        assert max(reference.stamp.get(e, 0) for e in result.evicted) <= min(
            reference.stamp.get(e, 0) for e in stay
        )
    moved = {move.expert: move for move in result.moves}
    reference.slots = [None] * size
    for slot, expert in before.items():
        if expert in result.evicted:
            continue
        target = slot
        if expert in moved:
            assert moved[expert].from_slot == slot >= size
            target = moved[expert].to_slot
        assert reference.slots[target] is None, "a move overwrites a survivor"
        reference.slots[target] = expert


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 9), st.lists(STEP, max_size=40))
def test_tables_follow_the_reference(num_slots: int, steps: list[tuple]) -> None:
    ours, reference = Residency(LAYERS, EXPERTS, num_slots), Reference(num_slots)
    for kind, layer, ids, count in steps:
        if kind == "step":
            run_step(ours, reference, layer, ids, count)
        elif kind == "borrow" and count <= ours.available(()):
            for slot in ours.borrow(count):
                assert slot in reference.coldest(set()), "a hot slot left while a colder one stayed"
                reference.slots[slot] = None
                reference.lent.add(slot)
        elif kind == "give_back":
            ours.give_back(reference.lent)
            reference.lent.clear()
        elif kind == "resize" and not reference.lent:
            run_resize(ours, reference, count)
        assert_same(ours, reference)


def test_each_routed_expert_counts_once() -> None:
    pool = Residency(1, 8, 4)
    pool.admit(0, [3], ())
    found = pool.lookup(0, [5, 3, 5, 3, 7])
    assert found.hits == ((3, 0),)
    assert found.misses == (5, 7)


def test_misses_demanded_most_lately_are_filled_first() -> None:
    pool = Residency(1, 8, 4)
    pool.lookup(0, [6])
    pool.lookup(0, [7])
    assert pool.lookup(0, [1, 6, 7]).fill_order == (7, 6, 1)
    pool.lookup(0, [6])
    pool.lookup(0, [1])
    assert pool.lookup(0, [1, 6, 7]).fill_order == (6, 1, 7), "twice counts for more than late"


def test_a_miss_is_worth_a_slot_once_it_is_wanted_more_than_the_victim() -> None:
    pool = Residency(1, 8, 2)
    assert signs_of(pool, 0).worthy == 1, "a free slot takes anything"
    pool.admit(0, [0], ())
    signs_of(pool, 1)
    pool.admit(0, [1], ())
    for expert in (0, 1, 0, 1):
        pool.lookup(0, [expert])
    assert [signs_of(pool, 5).worthy for _ in range(4)] == [0, 0, 0, 1]
    found = pool.lookup(0, [5, 6])
    assert found.signs is not None
    assert found.fill_order == (5, 6)
    assert found.signs.worthy == 1, "the second would evict what is wanted more"


def test_residents_in_use_are_no_victims_of_a_worthy_miss() -> None:
    pool = Residency(1, 8, 1)
    pool.lookup(0, [0])
    pool.admit(0, [0], ())
    for _ in range(3):
        pool.lookup(0, [5])
    found = pool.lookup(0, [0, 5])
    assert found.signs is not None
    assert (found.hits, found.signs.worthy) == (((0, 0),), 0)


def test_filling_more_than_can_be_had_is_refused_with_numbers() -> None:
    pool = Residency(1, 8, 2)
    pool.admit(0, [0, 1], ())
    with pytest.raises(ValueError, match="2 fills asked for, 1 of 2 slots"):
        pool.admit(0, [2, 3], in_use=[0])
    pool.check()
    assert pool.num_resident == 2


def test_a_buffer_may_come_back_with_an_expert_in_it() -> None:
    pool = Residency(2, 4, 4)
    pool.admit(0, [0, 1], ())
    slots = pool.borrow(2)
    pool.give_back(slots, holding={slots[0]: (1, 3)})
    pool.check()
    assert pool.slots_of(1) == {3: slots[0]}
    # What a prefill left behind goes before anything decoding has asked for.
    (fill, second) = pool.admit(1, [0, 1], ())
    assert fill.evicted is None
    assert second.evicted == (1, 3)


def test_resizing_waits_for_borrowed_slots() -> None:
    pool = Residency(1, 4, 4)
    pool.borrow(2)
    with pytest.raises(ValueError, match="lent to a prefill"):
        pool.resize(2)


def test_wrong_ids_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="expert 4 of 4"):
        Residency(1, 4, 2).lookup(0, [4])
    with pytest.raises(ValueError, match="layer 1 of 1"):
        Residency(1, 4, 2).lookup(1, [0])


def signs_of(pool: Residency, expert: int) -> Signs:
    """What one lookup of one expert tells."""
    signs = pool.lookup(0, [expert]).signs
    assert signs is not None
    return signs


def test_a_miss_that_a_fill_would_have_saved_is_a_regret() -> None:
    pool = Residency(1, 8, 2)
    for expert in (0, 1):
        assert signs_of(pool, expert).warming
        pool.admit(0, [expert], ())
    assert signs_of(pool, 5) == Signs(0, 0, warming=False, worthy=0)
    assert signs_of(pool, 5).regrets == 1
    # Demanded longer ago than the coldest resident: it would have been evicted by now.
    for expert in (0, 1):
        pool.lookup(0, [expert])
    assert signs_of(pool, 5).regrets == 0


def test_hits_among_the_coldest_slots_are_counted() -> None:
    pool = Residency(1, 32, 16)
    for expert in range(16):
        pool.lookup(0, [expert])
        pool.admit(0, [expert], ())
    for _ in range(20):
        for expert in range(3, 16):
            assert signs_of(pool, expert).cold_hits == 0
    assert signs_of(pool, 0).cold_hits == 1

"""The host's view of a device's slot tables: lending, returning, resizing; the stream's plan."""

from __future__ import annotations

import numpy as np
import pytest

from ftengine.experts.policy.mirror import FREE, LENT, Mirror
from ftengine.experts.policy.stream_plan import plan_stream, runs

LAYERS, EXPERTS, SLOTS = 3, 6, 8


def empty(slots: int = SLOTS) -> Mirror:
    mirror = Mirror(
        EXPERTS,
        np.zeros(LAYERS * EXPERTS, np.int32),
        np.zeros(slots, np.int32),
        np.zeros(slots, np.int64),
    )
    mirror.drop_all()
    return mirror


def filled(count: int = SLOTS) -> Mirror:
    """Experts 0, 1, ... of the layers in turn; the first one is the coldest."""
    mirror = empty()
    for number in range(count):
        mirror.place((number % LAYERS, number // LAYERS), SLOTS - 1 - number, 10 + number)
    mirror.check()
    return mirror


def test_free_slots_are_lent_first_then_the_coldest() -> None:
    mirror = filled(6)
    lent = mirror.lend(4)
    assert lent == (0, 1, 6, 7), "two free ones, then those of stamps 10 and 11; in rising order"
    assert mirror.num_resident == 4
    assert mirror.available(()) == 4
    assert mirror.available({2, 3}) == 2
    mirror.check()
    with pytest.raises(ValueError, match="5 slots asked for, 4 can be borrowed"):
        mirror.lend(5)


def test_what_comes_back_is_the_coldest_and_what_is_empty_is_free() -> None:
    mirror = filled()
    lent = mirror.lend(4)
    mirror.give_back(lent, {lent[0]: (2, 5), lent[1]: (1, 4)})
    mirror.check()
    assert mirror.num_resident == 6
    assert mirror.lend(2) == lent[2:], "free before all others"
    assert mirror.lend(2) == lent[:2], "then what a prefill left"
    with pytest.raises(ValueError, match="slot 3 is not lent out"):
        mirror.give_back((3,), {})


def test_an_expert_has_one_slot() -> None:
    mirror = filled(1)
    with pytest.raises(ValueError, match="is taken already"):
        mirror.place((0, 0), 2, 5)


@pytest.mark.parametrize("slots", [3, 8, 20])
def test_a_resize_keeps_the_warmest_where_they_are_if_it_can(slots: int) -> None:
    before, after = filled(), empty(slots)
    moves = before.moved_to(after)
    after.check()
    assert after.num_resident == min(slots, SLOTS)
    assert all(source == target for source, target in moves if source < slots)
    assert len({target for _, target in moves}) == len(moves)
    warmest = [(number % LAYERS, number // LAYERS) for number in range(SLOTS)][
        -after.num_resident :
    ]
    for layer, expert in warmest:
        assert after.slots_of(layer)[expert] >= 0


def test_dropping_all_leaves_free_slots_in_order() -> None:
    stamps = np.full(SLOTS, LENT, np.int64)
    mirror = Mirror(EXPERTS, np.zeros(18, np.int32), np.zeros(SLOTS, np.int32), stamps)
    mirror.drop_all()
    assert stamps.tolist() == [FREE + slot for slot in range(SLOTS)]
    assert mirror.num_resident == 0


@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_plan_computes_every_expert_once_and_takes_turns(size: int) -> None:
    mirror = empty(2 * size + 4)
    for expert in range(4):
        mirror.place((1, expert), expert, 100 + expert)
    lent = mirror.lend(2 * size)
    plan = plan_stream(mirror, lent)
    assert [piece.row % 2 for layer in plan.layers for piece in layer] == [
        piece.half for layer in plan.layers for piece in layer
    ]
    for layer, pieces in enumerate(plan.layers):
        owners = (plan.table[[piece.row for piece in pieces], :EXPERTS] >= 0).sum(axis=0)
        assert owners.tolist() == [1] * EXPERTS
        missing = [expert for piece in pieces for expert, _ in piece.places]
        assert missing == [e for e in range(EXPERTS) if mirror.slots_of(layer)[e] < 0]
        for piece in pieces:
            half = lent[:size] if piece.half == 0 else lent[size:]
            assert {slot for _, slot in piece.places} <= set(half)
    assert plan.table.shape[1] % 4 == 0, "rows begin at multiples of 16 bytes"
    order = [plan.layers[0][0]]
    while (following := plan.after(order[-1])) is not None:
        order.append(following)
    assert [piece.row for piece in order] == list(range(len(plan.table)))


def test_without_buffers_a_plan_names_what_is_resident() -> None:
    mirror = filled(4)
    plan = plan_stream(mirror, ())
    assert [len(pieces) for pieces in plan.layers] == [1, 1, 1]
    assert not any(piece.places for pieces in plan.layers for piece in pieces)
    assert plan.table[0, :EXPERTS].tolist() == mirror.slots_of(0).tolist()


def test_neighbours_are_copied_together() -> None:
    places = ((0, 4), (1, 5), (2, 7), (4, 8), (5, 9))
    assert list(runs(places)) == [(0, 4, 2), (2, 7, 1), (4, 8, 2)]
    assert list(runs(())) == []

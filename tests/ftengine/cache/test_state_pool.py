"""States of recurrent layers: slots are apart, a checkpoint leads back to where it was taken."""

from __future__ import annotations

import torch

from ftengine.cache.state_pool import StatePool, slot_bytes

SHAPES = [((3, 10), (2, 4, 5)), ((2, 7),)]


def new_pool(slots: int = 3) -> StatePool:
    return StatePool(SHAPES, slots, lambda count: torch.full((count,), 255, dtype=torch.uint8))


def fill(pool: StatePool, slot: int, value: float) -> None:
    for layer in range(len(SHAPES)):
        for part in pool.parts(layer, slot):
            part.fill_(value)


def values(pool: StatePool, slot: int) -> set[float]:
    return {
        float(item)
        for layer in range(len(SHAPES))
        for part in pool.parts(layer, slot)
        for item in part.flatten()
    }


def test_parts_have_their_shapes_and_start_at_zero() -> None:
    pool = new_pool()
    assert [[tuple(part.shape) for part in pool.parts(layer, 1)] for layer in (0, 1)] == [
        [(3, 10), (2, 4, 5)],
        [(2, 7)],
    ]
    assert values(pool, 2) == {0.0}
    assert pool.total_bytes == 3 * pool.bytes_per_slot == 3 * slot_bytes(SHAPES)
    for layer in (0, 1):
        for part in pool.parts(layer, 2):
            assert part.storage_offset() % 16 == 0


def test_slots_and_layers_are_apart() -> None:
    pool = new_pool()
    fill(pool, 1, 5.0)
    pool.parts(0, 1)[1].fill_(7.0)
    assert values(pool, 0) == values(pool, 2) == {0.0}
    assert {float(item) for item in pool.parts(1, 1)[0].flatten()} == {5.0}
    pool.reset(1)
    assert values(pool, 1) == {0.0}


def test_a_copied_slot_keeps_what_it_was() -> None:
    pool = new_pool()
    fill(pool, 0, 1.0)
    pool.copy(0, 2)
    fill(pool, 0, 2.0)
    assert (values(pool, 0), values(pool, 1), values(pool, 2)) == ({2.0}, {0.0}, {1.0})

"""States of recurrent layers: slots are apart, a checkpoint leads back to where it was taken."""

from __future__ import annotations

import pytest
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


def test_a_checkpoint_is_a_copy_that_can_be_restored_anywhere() -> None:
    pool = new_pool()
    fill(pool, 0, 1.0)
    saved = pool.save(0, num_tokens=17)
    fill(pool, 0, 2.0)
    pool.restore(saved, 2)
    assert (values(pool, 0), values(pool, 2)) == ({2.0}, {1.0})
    pool.copy(0, 1)
    fill(pool, 0, 3.0)
    assert values(pool, 1) == {2.0}
    assert (saved.num_tokens, saved.num_bytes) == (17, pool.bytes_per_slot)


def test_a_checkpoint_of_another_model_is_refused() -> None:
    other = StatePool([((2, 2),)], 1, lambda count: torch.zeros(count, dtype=torch.uint8))
    with pytest.raises(ValueError, match="does not fit"):
        new_pool().restore(other.save(0, 1), 0)

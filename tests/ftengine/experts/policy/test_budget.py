"""Context first, then states, then slots; refusals carry numbers; resizing has hysteresis."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ftengine.experts.policy.budget import (
    Hysteresis,
    MemoryNeeds,
    context_that_fits,
    divide,
    follow_free_memory,
)

GIB = 1 << 30
NEEDS = MemoryNeeds(
    fixed_bytes=5 * GIB,
    kv_bytes_per_token=20480,
    context_tokens=32768,
    state_bytes=GIB // 4,
    slot_bytes=6 << 20,
    num_experts_total=10240,
)


@given(st.integers(0, 200 * GIB), st.integers(0, 2_000_000), st.integers(0, 64))
def test_a_plan_adds_up(total: int, context: int, min_slots: int) -> None:
    needs = replace(NEEDS, context_tokens=context, min_slots=min_slots)
    plan = divide(total, needs)
    if plan.fits:
        used = needs.fixed_bytes + plan.kv_bytes + plan.state_bytes
        used += plan.expert_slots * needs.slot_bytes
        assert used + plan.spare_bytes == total
        assert min_slots <= plan.expert_slots <= needs.num_experts_total
        assert plan.spare_bytes < needs.slot_bytes or plan.expert_slots == needs.num_experts_total
    else:
        assert plan.need_bytes > plan.have_bytes == total
        assert f"{plan.need_bytes / 1e9:.2f} GB needed, {total / 1e9:.2f} GB there" in plan.reason


@given(st.integers(6 * GIB, 60 * GIB))
def test_the_context_offered_is_the_largest_that_fits(total: int) -> None:
    tokens = context_that_fits(total, NEEDS)
    assert divide(total, replace(NEEDS, context_tokens=tokens)).fits
    assert not divide(total, replace(NEEDS, context_tokens=tokens + 1)).fits


def test_more_context_means_fewer_slots() -> None:
    short = divide(32 * GIB, NEEDS)
    long = divide(32 * GIB, replace(NEEDS, context_tokens=131072))
    assert long.kv_bytes == 4 * short.kv_bytes
    assert long.expert_slots < short.expert_slots


def test_slots_shrink_as_soon_as_the_reserve_is_touched() -> None:
    rule = Hysteresis(reserve_bytes=GIB)
    less = follow_free_memory(1000, GIB - 1, NEEDS, rule)
    assert less == 999
    assert follow_free_memory(1000, 0, NEEDS, rule) == 1000 - -(-GIB // NEEDS.slot_bytes)


def test_slots_grow_only_when_it_is_worth_a_rebuild() -> None:
    rule = Hysteresis(reserve_bytes=GIB, grow_share=0.1)
    assert follow_free_memory(1000, GIB + 99 * NEEDS.slot_bytes, NEEDS, rule) == 1000
    assert follow_free_memory(1000, GIB + 100 * NEEDS.slot_bytes, NEEDS, rule) == 1100


def test_following_settles() -> None:
    slots, free = 1000, 3 * GIB
    for _ in range(5):
        wanted = follow_free_memory(slots, free, NEEDS)
        free -= (wanted - slots) * NEEDS.slot_bytes
        slots, before = wanted, slots
    assert slots == before

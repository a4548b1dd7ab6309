"""One launch per MoE layer: who of the routed experts is in a slot, who gets one, who is the CPU's.

The specification is experts/policy (residency, demand, planner); a test replays traces through
both. One program, at most 64 pairs. Cutting the misses is split_misses.py's; moving the bytes is
row_copy.py's. Tables and their first values: experts' AdmissionTables in expert_calls.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.split_misses import split_misses

STEP, NEXT_STAMP, COLD_STEP = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Places in `clock`."""
COLD_EVERY, COLD_PART = tl.constexpr(64), tl.constexpr(8)
LENT = tl.constexpr(1 << 46)
"""Stamp of a slot that is lent to a prefill. Free slots have stamps below any resident's."""
NEVER = tl.constexpr(1 << 62)


@triton.jit
def faded(
    count: tl.tensor, lookups: tl.tensor, powers: tl.tensor, num_powers: tl.tensor
) -> tl.tensor:
    """A demand count after so many lookups. Beyond the table it stays at the table's end."""
    return count * tl.load(powers + tl.minimum(lookups, num_powers - 1))


@triton.jit
def demand_of(flat: tl.tensor, live: tl.tensor, fading: tl.tensor) -> tl.tensor:
    """Faded demand of experts as of this lookup. fading: step, counts, counted, powers, their n."""
    step, counts, counted, powers, num_powers = fading
    count = tl.load(counts + flat, mask=live, other=0.0)
    then = tl.load(counted + flat, mask=live, other=0)
    return faded(count, tl.where(live, step - then, 0), powers, num_powers)


@triton.jit
def first_of(ids: tl.tensor, live: tl.tensor, PAIRS: tl.constexpr) -> tl.tensor:
    """For each pair the first pair with the same expert."""
    place = tl.arange(0, PAIRS)
    same = (ids[:, None] == ids[None, :]) & live[None, :]
    return tl.min(tl.where(same, place[None, :], PAIRS), 1)


@triton.jit
def count_true(flags: tl.tensor) -> tl.tensor:
    """How many are set."""
    return tl.sum(flags.to(tl.int32), 0)


@triton.jit
def before(flags: tl.tensor, PAIRS: tl.constexpr) -> tl.tensor:
    """For each place the set flags in front of it."""
    place = tl.arange(0, PAIRS)
    earlier = (place[None, :] < place[:, None]) & flags[None, :]
    return tl.sum(earlier.to(tl.int32), 1)


@triton.jit
def fill_rank(counts: tl.tensor, miss: tl.tensor, PAIRS: tl.constexpr) -> tl.tensor:
    """Place of each miss in fill order: most demanded first, ties in order of appearance."""
    place = tl.arange(0, PAIRS)
    more = counts[None, :] > counts[:, None]
    level = (counts[None, :] == counts[:, None]) & (place[None, :] < place[:, None])
    return tl.sum(((more | level) & miss[None, :]).to(tl.int32), 1)


@triton.jit
def stamp_at(stamps: tl.tensor, resident: tl.tensor, place: tl.tensor) -> tl.tensor:
    """The stamp that exactly `place` residents are below."""
    low = tl.min(tl.where(resident, stamps, NEVER), 0)
    high = tl.max(tl.where(resident, stamps, -NEVER), 0)
    while low < high:
        middle = (low + high) >> 1
        enough = count_true(resident & (stamps <= middle)) > place
        low, high = tl.where(enough, low, middle + 1), tl.where(enough, middle, high)
    return low


@triton.jit
def last_of_stamp(
    stamp: tl.tensor, stamps: tl.tensor, owners: tl.tensor, resident: tl.tensor, last: tl.tensor
) -> tl.tensor:
    """Last demand of the resident with this stamp."""
    owner = tl.max(tl.where(resident & (stamps == stamp), owners, 0), 0)
    return tl.load(last + owner)


@triton.jit
def cold_step_now(
    clock: tl.tensor,
    step: tl.tensor,
    stamps: tl.tensor,
    owners: tl.tensor,
    num_free: tl.tensor,
    last: tl.tensor,
) -> tl.tensor:
    """Last demand of the warmest of the coldest eighth; looked up anew every COLD_EVERY lookups."""
    cold = tl.load(clock + COLD_STEP)
    if step % COLD_EVERY == 0:
        resident = owners >= 0
        place = count_true(resident) // COLD_PART
        if (num_free > 0) | (place == 0):
            cold = tl.full([], 0, tl.int64)
        else:
            stamp = stamp_at(stamps, resident, place)
            cold = last_of_stamp(stamp, stamps, owners, resident, last).to(tl.int64)
    return cold


@triton.jit
def oldest_kept(
    stamps: tl.tensor, owners: tl.tensor, num_free: tl.tensor, last: tl.tensor
) -> tl.tensor:
    """Last demand of the coldest resident; 0 while slots are free."""
    resident = owners >= 0
    oldest = tl.full([], 0, tl.int32)
    if (num_free == 0) & (count_true(resident) > 0):
        stamp = tl.min(tl.where(resident, stamps, NEVER), 0)
        oldest = last_of_stamp(stamp, stamps, owners, resident, last)
    return oldest


@triton.jit
def choose_victims(
    keys: tl.tensor,
    most: tl.tensor,
    rank: tl.tensor,
    miss: tl.tensor,
    demand: tl.tensor,
    warming: tl.tensor,
    owner_of: tl.tensor,
    fading: tl.tensor,
    SLOTS: tl.constexpr,
) -> tl.tensor:
    """A slot for each of the first `most` misses, coldest first, and how many are worth it."""
    slot_for = tl.full(rank.shape, -1, tl.int32)
    worthy = tl.full([], 0, tl.int32)
    worth_it = tl.full([], 1, tl.int32)
    for place in range(most):
        key = tl.min(keys, 0)
        keys = tl.where(keys == key, NEVER, keys)
        slot = (key & (SLOTS - 1)).to(tl.int32)
        mine = miss & (rank == place)
        slot_for = tl.where(mine, slot, slot_for)
        owner = tl.load(owner_of + slot)
        theirs = demand_of(owner, owner >= 0, fading)
        better = tl.sum(tl.where(mine, demand, 0.0), 0) > theirs
        worth_it = worth_it & (better | warming).to(tl.int32)
        worthy += worth_it
    return slot_for, worthy


@triton.jit
def write_lists(
    fills: tl.tensor,
    on_cpu: tl.tensor,
    expert: tl.tensor,
    slot_for: tl.tensor,
    rank: tl.tensor,
    miss: tl.tensor,
    num_fills: tl.tensor,
) -> None:
    """The copy plan and the CPU's experts, both in fill order."""
    fill = miss & (rank < num_fills)
    tl.store(fills + 2 * rank, expert, mask=fill)
    tl.store(fills + 2 * rank + 1, slot_for, mask=fill)
    tl.store(on_cpu + rank - num_fills, expert, mask=miss & (rank >= num_fills))


@triton.jit
def write_counts(
    found: tl.tensor, num_fills: tl.tensor, num_misses: tl.tensor, num_hits: tl.tensor
) -> None:
    """How long the lists are."""
    tl.store(found + 0, num_fills)
    tl.store(found + 1, num_misses - num_fills)
    tl.store(found + 2, num_hits)
    tl.store(found + 3, num_misses)


@triton.jit
def write_clock(clock: tl.tensor, step: tl.tensor, stamp: tl.tensor, cold_step: tl.tensor) -> None:
    """What the next lookup goes on from."""
    tl.store(clock + STEP, step)
    tl.store(clock + NEXT_STAMP, stamp)
    tl.store(clock + COLD_STEP, cold_step)


@triton.jit
def admission(
    ids: tl.tensor,
    slot_of: tl.tensor,
    owner_of: tl.tensor,
    stamp_of: tl.tensor,
    last: tl.tensor,
    counts: tl.tensor,
    counted: tl.tensor,
    powers: tl.tensor,
    clock: tl.tensor,
    rates: tl.tensor,
    reuse: tl.tensor,
    since_fill: tl.tensor,
    totals: tl.tensor,
    rows: tl.tensor,
    fills: tl.tensor,
    on_cpu: tl.tensor,
    found: tl.tensor,
    layer: tl.tensor,
    num_experts: tl.tensor,
    num_pairs: tl.tensor,
    num_tokens: tl.tensor,
    num_slots: tl.tensor,
    num_powers: tl.tensor,
    row_bytes: tl.tensor,
    PAIRS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> tl.tensor:
    """Look up, divide, admit.

    Shape: ids int32 [num_pairs]; rows int32 [num_pairs], written: slot or -1 = the CPU's; fills
    int32 [PAIRS, 2]: (expert, slot); on_cpu int32 [PAIRS]: experts; found int32 [4]: fills, experts
    for the CPU, hits, misses. One program. Tables: AdmissionTables.
    """
    pair, slots = tl.arange(0, PAIRS), tl.arange(0, SLOTS)
    live = pair < num_pairs
    expert = tl.load(ids + pair, mask=live, other=0)
    flat = layer * num_experts + expert
    first = first_of(expert, live, PAIRS)
    distinct = live & (first == pair)
    slot = tl.load(slot_of + flat, mask=distinct, other=-1)
    hit, miss = distinct & (slot >= 0), distinct & (slot < 0)
    seen = tl.load(last + flat, mask=distinct, other=0)
    step = tl.load(clock + STEP).to(tl.int32) + 1
    stamp = tl.load(clock + NEXT_STAMP)
    exists = slots < num_slots
    owners = tl.load(owner_of + slots, mask=exists, other=-1)
    stamps = tl.load(stamp_of + slots, mask=exists, other=LENT)
    num_free = count_true((owners < 0) & (stamps < LENT))
    cold_step = cold_step_now(clock, step, stamps, owners, num_free, last)
    cold_hits = count_true(hit & (seen < cold_step))
    fading, warming = (step, counts, counted, powers, num_powers), num_free > 0
    demand = demand_of(flat, distinct, fading)
    rank = fill_rank(demand, miss, PAIRS)
    num_hits, num_misses = count_true(hit), count_true(miss)
    tl.debug_barrier()
    tl.store(stamp_of + slot, stamp + before(hit, PAIRS), mask=hit)
    tl.debug_barrier()
    stamps = tl.load(stamp_of + slots, mask=exists, other=LENT)
    keys = tl.where(stamps < stamp, stamps * SLOTS + slots, NEVER)
    most = tl.minimum(num_misses, count_true(keys < NEVER))
    slot_for, worthy = choose_victims(
        keys, most, rank, miss, demand, warming, owner_of, fading, SLOTS
    )
    worthy = tl.where(warming, num_misses, worthy)
    regrets = count_true(miss & (seen > oldest_kept(stamps, owners, num_free, last)))
    signs = (worthy, regrets, cold_hits, warming)
    size = (num_misses, num_hits, num_tokens, row_bytes)
    num_fills = split_misses(rates, reuse, since_fill + layer, totals, most, signs, size, 2 * PAIRS)
    fill = miss & (rank < num_fills)
    evicted = tl.load(owner_of + slot_for, mask=fill, other=-1)
    tl.debug_barrier()
    tl.store(slot_of + evicted, -1, mask=evicted >= 0)
    tl.store(slot_of + flat, slot_for, mask=fill)
    tl.store(owner_of + slot_for, flat, mask=fill)
    tl.store(stamp_of + slot_for, stamp + num_hits + rank, mask=fill)
    tl.store(last + flat, step, mask=distinct)
    tl.store(counts + flat, demand + 1.0, mask=distinct)
    tl.store(counted + flat, step, mask=distinct)
    row = tl.where(hit, slot, tl.where(fill, slot_for, -1))
    row = tl.sum(tl.where(first[:, None] == pair[None, :], row[None, :], 0), 1)
    tl.store(rows + pair, row, mask=live)
    write_lists(fills, on_cpu, expert, slot_for, rank, miss, num_fills)
    write_clock(clock, step.to(tl.int64), stamp + num_hits + num_fills, cold_step)
    write_counts(found, num_fills, num_misses, num_hits)

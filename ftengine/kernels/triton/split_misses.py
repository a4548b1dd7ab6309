"""How many misses of a layer are filled, inside the admission kernel: experts/policy/planner.py.

What the planner learns from measured times (rates, the judge of mixed splits) stays with the host,
which writes `rates` between steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

LINK, HOST, HOST_LEFT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LINK_LATENCY, COPY_LATENCY, CPU_LATENCY = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
DEVICE, CPU_FREE_TOKENS, FILL_PERIOD = tl.constexpr(6), tl.constexpr(7), tl.constexpr(8)
MODE, MIN_FILL = tl.constexpr(9), tl.constexpr(10)
"""Places in `rates`, float64. MODE: 0 split, 1 pure, 2 fetch, 3 cpu."""
REGRETS, UNFILLED, COLD_HITS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FILLS, WARMING = tl.constexpr(3), tl.constexpr(4)
"""Places in `reuse`, float64."""
TIE, DECAY, SURE, COLD_PART = (
    tl.constexpr(1e-9),
    tl.constexpr(0.9995),
    tl.constexpr(0.75),
    tl.constexpr(8.0),
)


@triton.jit
def layer_seconds(
    rates: tl.tensor,
    row_bytes: tl.tensor,
    fills: tl.tensor,
    on_cpu: tl.tensor,
    num_hits: tl.tensor,
    num_tokens: tl.tensor,
) -> tl.tensor:
    """Predicted seconds of a layer for each number of fills, float64."""
    each = tl.load(rates + COPY_LATENCY) + row_bytes / tl.load(rates + LINK)
    fill_s = tl.where(fills > 0, tl.load(rates + LINK_LATENCY) + fills * each, 0.0)
    host, left = tl.load(rates + HOST), tl.load(rates + HOST_LEFT)
    latency = tl.load(rates + CPU_LATENCY)
    aside = tl.maximum(fill_s - latency, 0.0)
    wanted = on_cpu * row_bytes
    done = tl.minimum(aside * left, wanted)
    rest = wanted - done
    busy = tl.where(rest > 0, aside, done / tl.maximum(left, 1.0))
    cpu_s = tl.where(on_cpu > 0, latency + busy + rest / host, 0.0)
    device_s = (num_hits + fills) * row_bytes / tl.load(rates + DEVICE)
    wide = tl.maximum(num_tokens / tl.load(rates + CPU_FREE_TOKENS), 1.0)
    return tl.maximum(tl.maximum(fill_s + device_s, cpu_s), cpu_s * wide)


@triton.jit
def fill_worth(reuse: tl.tensor) -> tl.tensor:
    """Misses that a fill saves later, less what it evicts."""
    share = tl.minimum(tl.load(reuse + REGRETS) / tl.load(reuse + UNFILLED), 1.0)
    chance = tl.minimum(share, SURE)
    lost = COLD_PART * tl.load(reuse + COLD_HITS) / tl.load(reuse + FILLS)
    settled = tl.maximum(share - lost / (1.0 + lost), 0.0)
    return tl.where(tl.load(reuse + WARMING) > 0, chance / (1.0 - chance), settled)


@triton.jit
def smaller(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """For a running minimum."""
    return tl.minimum(a, b)


@triton.jit
def best_fills(
    rates: tl.tensor,
    reuse: tl.tensor,
    num_misses: tl.tensor,
    num_hits: tl.tensor,
    most: tl.tensor,
    num_tokens: tl.tensor,
    row_bytes: tl.tensor,
    MODE_NOW: tl.tensor,
    CANDIDATES: tl.constexpr,
) -> tl.tensor:
    """The number of fills with the least cost; of equal ones the largest."""
    fills = tl.arange(0, CANDIDATES)
    candidate = (fills <= most) & ((MODE_NOW != 1) | (fills == 0) | (fills == most))
    wide = fills.to(tl.float64)
    on_cpu = tl.maximum(num_misses.to(tl.float64) - wide, 0.0)
    bytes_each = row_bytes.to(tl.float64)
    tokens = num_tokens.to(tl.float64)
    seconds = layer_seconds(rates, bytes_each, wide, on_cpu, num_hits.to(tl.float64), tokens)
    least = tl.min(tl.where(candidate, seconds, float("inf")), 0)
    worth = fill_worth(reuse) * least / tl.maximum(num_misses, 1).to(tl.float64)
    cost = tl.where(candidate, seconds - worth * wide, float("inf"))
    so_far = tl.associative_scan(cost, 0, smaller)
    # a cost within TIE of the least before it, or the new least
    accepted = candidate & (cost <= so_far + TIE * seconds)
    return tl.max(tl.where(accepted, fills, 0), 0)


@triton.jit
def with_debt(
    rates: tl.tensor,
    since_fill: tl.tensor,
    totals: tl.tensor,
    fills: tl.tensor,
    num_misses: tl.tensor,
    most: tl.tensor,
) -> tl.tensor:
    """At least one fill in every FILL_PERIOD missing steps of a layer."""
    if (num_misses > 0) & (most > 0):
        least = tl.minimum(tl.load(rates + MIN_FILL).to(tl.int32), most)
        fills = tl.maximum(fills, least)
        waited = tl.load(since_fill) + 1
        owed = (fills == 0) & (waited >= tl.load(rates + FILL_PERIOD).to(tl.int32))
        # every warp must have read the count before one of them writes it
        tl.debug_barrier()
        tl.store(since_fill, tl.where(owed | (fills > 0), 0, waited))
        tl.store(totals + 4, tl.load(totals + 4) + owed.to(tl.int64))
        fills = tl.where(owed, 1, fills)
    return fills


@triton.jit
def learn(
    reuse: tl.tensor,
    regrets: tl.tensor,
    cold_hits: tl.tensor,
    warming: tl.tensor,
    unfilled: tl.tensor,
    fills: tl.tensor,
) -> tl.tensor:
    """Fold one lookup's signs into the worth of fills."""
    kept = tl.load(reuse + REGRETS) * DECAY + regrets.to(tl.float64)
    tl.store(reuse + REGRETS, kept)
    kept = tl.load(reuse + UNFILLED) * DECAY + unfilled.to(tl.float64)
    tl.store(reuse + UNFILLED, tl.maximum(kept, 1.0))
    kept = tl.load(reuse + COLD_HITS) * DECAY + cold_hits.to(tl.float64)
    tl.store(reuse + COLD_HITS, kept)
    kept = tl.load(reuse + FILLS) * DECAY + fills.to(tl.float64)
    tl.store(reuse + FILLS, tl.maximum(kept, 1.0))
    tl.store(reuse + WARMING, warming.to(tl.float64))


@triton.jit
def split_misses(
    rates: tl.tensor,
    reuse: tl.tensor,
    since_fill: tl.tensor,
    totals: tl.tensor,
    most: tl.tensor,
    signs: tl.tensor,
    step_size: tl.tensor,
    CANDIDATES: tl.constexpr,
) -> tl.tensor:
    """Fills of this lookup, at most `most` of them; signs and step_size are tuples.

    Changes reuse, since_fill and totals (hits, misses, fills, on the CPU, owed). Under fetch what
    finds no slot is left to the CPU: the caller must have room for a layer.
    """
    worthy, regrets, cold_hits, warming = signs
    num_misses, num_hits, num_tokens, row_bytes = step_size
    mode = tl.load(rates + MODE).to(tl.int32)
    chosen = tl.minimum(most, worthy)
    best = best_fills(
        rates, reuse, num_misses, num_hits, chosen, num_tokens, row_bytes, mode, CANDIDATES
    )
    if mode <= 1:
        fills = with_debt(rates, since_fill, totals, best, num_misses, chosen)
    else:
        fills = tl.where(mode == 2, most, 0)
    tl.debug_barrier()
    learn(reuse, regrets, cold_hits, warming, num_misses - fills, fills)
    tl.store(totals + 0, tl.load(totals + 0) + num_hits)
    tl.store(totals + 1, tl.load(totals + 1) + num_misses)
    tl.store(totals + 2, tl.load(totals + 2) + fills)
    tl.store(totals + 3, tl.load(totals + 3) + num_misses - fills)
    return fills

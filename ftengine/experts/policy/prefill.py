"""How a step of many tokens gets its experts: whole layers streamed, the decode path, or the CPU.

A short turn must not stream the pool; a long prompt must not fetch expert by expert. The cost of
each way decides. Copies and buffers are layer_stream.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftengine.experts.policy.planner import estimate
from ftengine.experts.policy.rates import Rates

WAYS = ("stream", "decode", "cpu")
_CLEARLY = 0.9
_BUFFER_SHARE = 4
"""Buffers take at most this fraction of the slots, so that the decode working set stays."""


@dataclass(frozen=True)
class PrefillFacts:
    """A step, seen by its average layer. Units: num_resident = experts of one layer in slots.

    free_slots: slots a layer may use for fills beside what it has in use; can_stream: buffers can
    be borrowed; compute_s: device seconds of a layer's arithmetic for these tokens (0 = unknown).
    """

    num_tokens: int
    num_experts: int
    num_experts_per_tok: int
    row_bytes: int
    num_resident: float
    free_slots: int
    can_stream: bool = True
    compute_s: float = 0.0


@dataclass(frozen=True)
class PrefillCosts:
    """Estimated seconds per layer of each way; infinity where a way is impossible."""

    stream: float
    decode: float
    cpu: float


def distinct_experts(num_tokens: int, num_experts: int, num_experts_per_tok: int) -> float:
    """Expected distinct experts of a layer if tokens chose independently and evenly.

    Real routing is more uneven, so this is a cautious upper estimate.
    """
    return num_experts * (1.0 - (1.0 - num_experts_per_tok / num_experts) ** num_tokens)


def prefill_costs(rates: Rates, facts: PrefillFacts) -> PrefillCosts:
    """Seconds of one layer by each way."""
    wanted = distinct_experts(facts.num_tokens, facts.num_experts, facts.num_experts_per_tok)
    absent = 1.0 - min(facts.num_resident / facts.num_experts, 1.0)
    missing = round(wanted * absent)
    hits = round(wanted) - missing
    per_expert = facts.num_tokens * facts.num_experts_per_tok / max(wanted, 1.0)
    wide = max(1.0, per_expert / rates.cpu_free_tokens)
    device_s = max(wanted * facts.row_bytes / rates.device_bytes_per_s, facts.compute_s)
    stream = float("inf")
    if facts.can_stream:
        streamed = estimate(rates, facts.row_bytes, round(facts.num_experts * absent), 0)
        # The next layer copies while this one computes.
        stream = max(streamed.fill_s, device_s)
    decode = float("inf")
    if facts.free_slots or not missing:
        decode = _divided(rates, facts, missing, hits, wide) + facts.compute_s
    alone = estimate(rates, facts.row_bytes, 0, missing, hits)
    cpu = max(alone.cpu_s * wide, alone.layer_s)
    return PrefillCosts(stream, decode, cpu)


def _divided(rates: Rates, facts: PrefillFacts, missing: int, hits: int, wide: float) -> float:
    """Least seconds of the decode path, which divides the misses between link and CPU."""
    best = float("inf")
    for fills in range(min(missing, facts.free_slots) + 1):
        guess = estimate(rates, facts.row_bytes, fills, missing - fills, hits)
        best = min(best, max(guess.layer_s, guess.cpu_s * wide))
    return best


def choose(rates: Rates, facts: PrefillFacts) -> str:
    """The cheapest way, where streaming must be beaten clearly.

    The other ways also wait for the router in every layer, which no rate here accounts for.
    """
    if facts.num_resident >= facts.num_experts:
        return "decode"
    costs = prefill_costs(rates, facts)
    if min(costs.decode, costs.cpu) > _CLEARLY * costs.stream:
        return "stream"
    return "decode" if costs.decode <= costs.cpu else "cpu"


def buffer_experts(num_slots: int, num_experts: int) -> int:
    """Experts in each of the two buffers: a whole layer, or the part of one the pool can spare.

    0 where the pool is too small to stream at all.
    """
    spare = num_slots // _BUFFER_SHARE // 2
    return min(num_experts, spare)

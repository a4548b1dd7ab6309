"""Fits or not, memory, tokens per second, first token: a model's shape on a machine's profile.

Three global constants, all below, none of them set per row; how far they carry is the table in
docs/forecast.md. All times are computed, never measured here.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ftengine.device.machine import Machine
from ftengine.experts.policy.budget import Hysteresis, MemoryNeeds, MemoryPlan, divide
from ftengine.experts.policy.planner import estimate
from ftengine.experts.policy.prefill import distinct_experts
from ftengine.experts.policy.rates import Rates
from ftengine.experts.timing import rates_of
from ftengine.forecast.shape import ModelShape

MISS_POINTS = ((0.11, 0.39), (0.37, 0.16))
"""Constant 1: decode miss rate at two shares of the pool in slots.

Source: arXiv 2608.16157, Figure 4b (global LRU). The curve through them is `miss_rate`.
"""
UTILISATION = 0.7
"""Constant 2: part of a sustained rate that short decode kernels and copies reach.

Source: one value chosen for all rows of docs/forecast.md together, so the table is in part a fit.
"""
LAYER_S = 60e-6
"""Constant 3: fixed time of a decode layer beside its bytes.

Source: about 20 operations of a captured layer at the 3 us of machine.py's launch_s; an estimate.
"""
_RAM_SHARE = 0.92
"""Part of a machine's RAM that experts may take; the rest is the system's."""


@dataclass(frozen=True)
class Question:
    """context_tokens of KV to reserve; prompt_tokens for the first token; cached_share overrides
    the share of the pool in slots (a published one, say)."""

    context_tokens: int = 32768
    prompt_tokens: int = 1024
    cached_share: float | None = None


@dataclass(frozen=True)
class Forecast:
    """The answer. Units: bytes, seconds, tokens per second, shares of 1; clock names the source."""

    model: str
    device: str
    fits: bool
    reason: str
    tier: str
    strategy: str
    tokens_per_s: float
    ttft_s: float
    vram_bytes: int
    ram_bytes: int
    disk_bytes: int
    expert_slots: int
    cached_share: float
    miss_rate: float
    context_tokens: int
    prompt_tokens: int
    clock: str = "computed"

    def to_json(self) -> dict[str, Any]:
        """Plain values for one JSON object."""
        return asdict(self)


def miss_rate(share: float) -> float:
    """Decode misses per routed expert when `share` of the pool is in slots, LRU.

    (1 - share) is chance; the stretched exponential beside it, set by MISS_POINTS, is locality.
    """
    if share <= 0.0:
        return 1.0
    if share >= 1.0:
        return 0.0
    (low, low_miss), (high, high_miss) = MISS_POINTS
    first, second = -math.log(low_miss / (1 - low)), -math.log(high_miss / (1 - high))
    power = math.log(second / first) / math.log(high / low)
    return (1.0 - share) * math.exp(-first * (share / low) ** power)


def forecast(shape: ModelShape, machine: Machine, question: Question | None = None) -> Forecast:
    """Answer for one model on one machine."""
    question = question or Question()
    plan = _memory(shape, machine, question)
    total = max(shape.num_experts_total, 1)
    share = plan.expert_slots / total if shape.num_experts_total else 1.0
    if question.cached_share is not None:
        share = question.cached_share
        plan = replace(plan, expert_slots=round(share * total))
    missing = miss_rate(share) if shape.num_experts_total else 0.0
    has_device = machine.vram_bytes > 0
    tier = _tier(shape, machine, plan)
    rates = _decode_rates(machine, tier)
    strategy, layer_s = _best_strategy(shape, rates, missing, has_device)
    dense_rate = machine.device_bytes_per_s if has_device else machine.host_bytes_per_s
    token_s = shape.read_bytes / (dense_rate * UTILISATION) + shape.num_layers * LAYER_S
    token_s += shape.num_moe_layers * layer_s
    slots_bytes = plan.expert_slots * shape.expert_row_bytes
    used = shape.dense_bytes + shape.work_bytes + plan.kv_bytes + plan.state_bytes + slots_bytes
    in_ram = shape.expert_bytes if tier == "ram" else 0
    return Forecast(
        model=shape.name,
        device=machine.name,
        fits=plan.fits,
        reason=plan.reason,
        tier=tier,
        strategy=strategy,
        tokens_per_s=round(1.0 / token_s, 2) if plan.fits else 0.0,
        ttft_s=round(_first_token(shape, machine, share, question) + token_s, 3),
        vram_bytes=used if has_device else 0,
        ram_bytes=in_ram if has_device else in_ram + used,
        disk_bytes=shape.disk_bytes or shape.dense_bytes + shape.expert_bytes,
        expert_slots=plan.expert_slots if has_device else 0,
        cached_share=round(share, 4),
        miss_rate=round(missing, 4),
        context_tokens=question.context_tokens,
        prompt_tokens=question.prompt_tokens,
    )


def _memory(shape: ModelShape, machine: Machine, question: Question) -> MemoryPlan:
    reserve = Hysteresis().reserve_bytes
    needs = MemoryNeeds(
        fixed_bytes=shape.dense_bytes + shape.work_bytes + reserve,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        context_tokens=question.context_tokens,
        state_bytes=shape.state_bytes,
        slot_bytes=shape.expert_row_bytes if machine.vram_bytes else 0,
        num_experts_total=shape.num_experts_total,
    )
    have = machine.vram_bytes or round(machine.ram_bytes * _RAM_SHARE)
    return divide(have, needs)


def _tier(shape: ModelShape, machine: Machine, plan: MemoryPlan) -> str:
    room = machine.ram_bytes * _RAM_SHARE
    if not machine.vram_bytes:
        room -= shape.dense_bytes + shape.work_bytes + plan.kv_bytes + plan.state_bytes
    return "ram" if shape.expert_bytes <= room else "disk"


def _decode_rates(machine: Machine, tier: str) -> Rates:
    """What decode reaches: every rate times UTILISATION; the disk bounds all of them if used."""
    rates = rates_of(machine)
    bound = machine.disk_bytes_per_s if tier == "disk" else float("inf")
    return replace(
        rates,
        link_bytes_per_s=min(rates.link_bytes_per_s, bound) * UTILISATION,
        host_bytes_per_s=min(rates.host_bytes_per_s, bound) * UTILISATION,
        host_left_bytes_per_s=min(rates.host_left_bytes_per_s, bound) * UTILISATION,
        device_bytes_per_s=rates.device_bytes_per_s * UTILISATION,
    )


def _best_strategy(
    shape: ModelShape, rates: Rates, missing: float, has_device: bool
) -> tuple[str, float]:
    """The strategy with the least expected seconds per MoE layer."""
    if not shape.num_moe_layers:
        return "resident", 0.0
    if not has_device:
        count = shape.num_experts_per_tok
        return "cpu", estimate(rates, shape.expert_row_bytes, 0, count).layer_s
    if missing == 0.0:
        count = shape.num_experts_per_tok
        return "resident", count * shape.expert_row_bytes / rates.device_bytes_per_s
    ways = {
        name: _expected_layer(shape, rates, missing, name) for name in ("split", "fetch", "cpu")
    }
    best = min(ways, key=lambda name: ways[name])
    return best, ways[best]


def _expected_layer(shape: ModelShape, rates: Rates, missing: float, strategy: str) -> float:
    """Mean over the binomial number of misses of one token."""
    count, total = shape.num_experts_per_tok, 0.0
    for misses in range(count + 1):
        weight = math.comb(count, misses) * missing**misses * (1 - missing) ** (count - misses)
        choices = {"fetch": [misses], "cpu": [0]}.get(strategy, list(range(misses + 1)))
        total += weight * min(
            estimate(rates, shape.expert_row_bytes, q, misses - q, count - misses).layer_s
            for q in choices
        )
    return total


def _first_token(shape: ModelShape, machine: Machine, share: float, question: Question) -> float:
    """Seconds of a prefill: layers stream while the ones before them compute.

    Long streams reach the measured link rate, so UTILISATION applies to computing alone.
    """
    tokens = question.prompt_tokens
    flops = 2.0 * shape.active_params * tokens
    if not machine.vram_bytes:
        # No measured rate of arithmetic for a host: its bytes, each expert read once per 8 tokens.
        wide = max(1.0, tokens * shape.num_experts_per_tok / max(shape.num_experts, 1) / 8)
        touched = distinct_experts(tokens, max(shape.num_experts, 1), shape.num_experts_per_tok)
        moved = shape.num_moe_layers * touched * shape.expert_row_bytes * wide
        moved += shape.read_bytes * max(1.0, tokens / 8)
        return moved / (machine.host_bytes_per_s * UTILISATION)
    compute_s = flops / (machine.device_flops_per_s * UTILISATION)
    if not shape.num_moe_layers:
        return compute_s
    touched = distinct_experts(tokens, shape.num_experts, shape.num_experts_per_tok)
    moved = shape.num_moe_layers * touched * (1.0 - share) * shape.expert_row_bytes
    return max(moved / machine.link_bytes_per_s, compute_s) + compute_s / shape.num_layers

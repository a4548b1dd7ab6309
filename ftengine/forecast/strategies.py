"""Divisions of misses against one another in virtual time, and prefill against the link's floor.

Used by benchmarks/expert_traffic.py and by tests; a forecast for users is forecast.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftengine.device.clock import VirtualClock
from ftengine.device.machine import Machine, read_machine
from ftengine.device.virtual import PrefillLayer, run_prefill, run_prefill_one_buffer
from ftengine.experts.policy.planner import Planner
from ftengine.experts.policy.prefill import PrefillFacts, choose
from ftengine.experts.policy.reference import ConstantShare, Divider, RoundedShare
from ftengine.experts.policy.residency import Residency
from ftengine.experts.timing import rates_of
from ftengine.experts.traces import Token, Trace
from ftengine.forecast.locality import deepseek_like, num_slots, qwen_like
from ftengine.forecast.published import DEEPSEEK_MXFP4, GLM_NVFP4, QWEN_BF16, QWEN_NVFP4
from ftengine.forecast.replay import Replay, Totals
from ftengine.forecast.shape import ModelShape

RATE_ERRORS = ((1.0, 1.0), (1.2, 0.8), (0.8, 1.2), (1.2, 1.2), (0.8, 0.8))
"""Factors on (link, host) of which the planner is not told."""
NUM_LAYERS = 8
"""Layers replayed: layers are alike in these traces, and the cache is cut in proportion."""


@dataclass(frozen=True)
class Case:
    """A machine, a model, and the share of its pool in slots."""

    device: str
    shape: ModelShape
    share: float

    @property
    def machine(self) -> Machine:
        """The profile."""
        return read_machine(self.device)

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.device}, {self.shape.name}"

    def trace(self, steps: int, seed: int, num_layers: int = NUM_LAYERS) -> Trace:
        """A session of the model's routing shape."""
        make = qwen_like if self.shape.num_experts_per_tok == 8 else deepseek_like
        return make(num_layers, steps, seed)


CASES = (
    Case("rtx-5090-server", QWEN_BF16, 0.37),
    Case("rtx-5090-desktop", QWEN_BF16, 0.37),
    Case("rtx-4090-server", QWEN_BF16, 0.25),
    Case("rtx-3090-server", QWEN_BF16, 0.25),
    Case("rtx-4060-laptop", QWEN_NVFP4, 0.15),
    Case("rtx-pro-6000-workstation", GLM_NVFP4, 0.16),
    Case("rtx-5090-server", DEEPSEEK_MXFP4, 0.11),
)


@dataclass(frozen=True)
class Contest:
    """Totals of every division on one case; best_share is the winner of the sweep."""

    case: Case
    autos: dict[tuple[float, float], Totals]
    shares: dict[float, Totals]
    forced: Totals
    rounded: Totals

    @property
    def fetch(self) -> Totals:
        """Every miss filled."""
        return self.shares[1.0]

    @property
    def cpu(self) -> Totals:
        """No miss filled."""
        return self.shares[0.0]

    @property
    def best_share(self) -> float:
        """The constant share that was fastest."""
        return min(self.shares, key=lambda share: self.shares[share].seconds)

    @property
    def auto_over_best(self) -> float:
        """Worst `auto` of all rate errors over the best constant share (0 and 1 included)."""
        return self._worst() / self.shares[self.best_share].seconds

    @property
    def auto_over_better_pure(self) -> float:
        """Worst `auto` of all rate errors over the better of fetch-only and CPU-only."""
        return self._worst() / min(self.fetch.seconds, self.cpu.seconds)

    def _worst(self) -> float:
        return max(totals.seconds for totals in self.autos.values())


def run_contest(
    case: Case,
    steps: int,
    seed: int,
    sweep: int = 20,
    left_error: float = 1.0,
    trace: Trace | None = None,
) -> Contest:
    """Replay one trace under every division, each from a cold cache.

    trace: a recorded one instead of the case's own, which steps and seed make.
    left_error: the machine's real B_R over the one everybody was told: contention misjudged.
    """
    trace, rates = trace or case.trace(steps, seed), rates_of(case.machine)
    rows = [case.shape.expert_row_bytes] * trace.num_layers

    left = case.machine.host_left_bytes_per_s * left_error
    real = replace(case.machine, host_left_bytes_per_s=left)

    def decode(divider: Divider) -> Totals:
        return _replay(case, trace, divider, real).run(trace.steps)

    return Contest(
        case=case,
        autos={
            error: decode(Planner(rates.with_error(*error), rows, "auto")) for error in RATE_ERRORS
        },
        shares={
            share / sweep: decode(ConstantShare(share / sweep, trace.num_layers))
            for share in range(sweep + 1)
        },
        forced=decode(RoundedShare(rates, 1)),
        rounded=decode(RoundedShare(rates, 0)),
    )


def _replay(case: Case, trace: Trace, divider: Divider, machine: Machine | None = None) -> Replay:
    pool = Residency(trace.num_layers, trace.num_experts, num_slots(trace, case.share))
    return Replay(machine or case.machine, pool, case.shape.expert_row_bytes, divider)


@dataclass(frozen=True)
class PrefillTimes:
    """Virtual seconds of a long prompt on a cold cache; link_s is pool bytes over B_P."""

    link_s: float
    compute_s: float
    two_buffers_s: float
    one_buffer_s: float


def run_long_prefill(machine: Machine, shape: ModelShape, num_tokens: int) -> PrefillTimes:
    """Every expert of every layer over the link, layer by layer. Compute at the rated FLOPs."""
    moved = float(shape.num_experts * shape.expert_row_bytes)
    compute_s = 2.0 * shape.active_params * num_tokens / machine.device_flops_per_s
    layer = PrefillLayer(moved, compute_s / shape.num_moe_layers, shape.num_experts)
    layers = [layer] * shape.num_moe_layers
    return PrefillTimes(
        link_s=shape.expert_bytes / machine.link_bytes_per_s,
        compute_s=compute_s,
        two_buffers_s=run_prefill(VirtualClock(machine), layers),
        one_buffer_s=run_prefill_one_buffer(machine, layers),
    )


@dataclass(frozen=True)
class ShortTurn:
    """A turn of a few tokens on a warm cache: the way chosen and the bytes, all per model pass."""

    way: str
    asked: int
    missing: int
    link_bytes: float
    pool_bytes: int


def run_short_turn(case: Case, num_tokens: int, seed: int) -> ShortTurn:
    """Warm the cache by decoding, then give one step the next `num_tokens` tokens together."""
    trace, rates = case.trace(200 + num_tokens, seed), rates_of(case.machine)
    row = case.shape.expert_row_bytes
    replay = _replay(case, trace, Planner(rates, [row] * trace.num_layers, "fetch"))
    replay.run(trace.steps[:200])
    pool = replay.residency
    facts = PrefillFacts(
        num_tokens=num_tokens,
        num_experts=trace.num_experts,
        num_experts_per_tok=trace.num_experts_per_tok,
        row_bytes=row,
        num_resident=pool.num_resident / trace.num_layers,
        free_slots=pool.num_slots // 2,
    )
    step = _merged(trace.steps[200:])
    totals = replay.run((step,))
    return ShortTurn(
        way=choose(rates, facts),
        asked=sum(map(len, step)),
        missing=totals.misses,
        link_bytes=totals.link_bytes,
        pool_bytes=trace.num_layers * trace.num_experts * row,
    )


@dataclass(frozen=True)
class AfterPrefill:
    """Decode hit rates over `window` steps before and after buffers were lent out and returned."""

    before: float
    after: float


def run_decode_after_prefill(case: Case, buffers: int, window: int, seed: int) -> AfterPrefill:
    """Decode, lend `buffers` slots of the whole model in proportion, give them back, decode."""
    trace = case.trace(150 + 2 * window, seed, num_layers=24)
    rates, row = rates_of(case.machine), case.shape.expert_row_bytes
    replay = _replay(case, trace, Planner(rates, [row] * trace.num_layers, "auto"))
    replay.run(trace.steps[:150])
    before = replay.run(trace.steps[150 : 150 + window])
    pool = replay.residency
    part = round(buffers * trace.num_layers / case.shape.num_moe_layers)
    pool.give_back(pool.borrow(min(part, pool.num_slots)))
    after = replay.run(trace.steps[150 + window :])
    return AfterPrefill(1.0 - before.miss_rate, 1.0 - after.miss_rate)


def _merged(tokens: tuple[Token, ...]) -> Token:
    """One step of several tokens: per layer the experts of all of them, each once."""
    layers = zip(*tokens, strict=True)
    return tuple(tuple(dict.fromkeys(e for experts in layer for e in experts)) for layer in layers)

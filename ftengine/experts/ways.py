"""Which way a wide step gets its experts: asks policy/prefill.py with the facts of the moment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from ftengine.experts.policy.planner import Planner
from ftengine.experts.policy.prefill import (
    PrefillCosts,
    PrefillFacts,
    buffer_experts,
    choose,
    prefill_costs,
)

DECODE, STREAM, CPU = "decode", "stream", "cpu"


class Occupancy(Protocol):
    """What lies in slots: policy/residency.py's tables, or policy/mirror.py's."""

    num_layers: int
    num_experts: int
    num_slots: int

    @property
    def num_resident(self) -> int:
        """Experts in slots."""

    def available(self, in_use: Collection[int]) -> int:
        """Slots that could be filled."""


@dataclass(frozen=True)
class WayChooser:
    """row_bytes: of the largest layer."""

    residency: Occupancy
    planner: Planner
    row_bytes: int

    @property
    def buffer_experts(self) -> int:
        """Experts in each of the two streaming buffers; 0 = this pool cannot stream."""
        return buffer_experts(self.residency.num_slots, self.residency.num_experts)

    def way(self, num_tokens: int, num_experts_per_tok: int) -> str:
        """DECODE, STREAM or CPU for all layers of this step.

        Steps with fewer routed pairs than a layer has experts always take the decode path.
        """
        residency = self.residency
        strategy = self.planner.strategy
        if strategy == "resident" or num_tokens * num_experts_per_tok < residency.num_experts:
            return DECODE
        facts = self._facts(num_tokens, num_experts_per_tok)
        if strategy == "fetch":
            # the decode path of this strategy has no CPU to share the misses with
            alone = replace(self.planner.rates, host_bytes_per_s=1.0, host_left_bytes_per_s=0.0)
            costs = prefill_costs(alone, facts)
            return STREAM if costs.stream < costs.decode else DECODE
        return choose(self.planner.rates, facts)

    def costs(self, num_tokens: int, num_experts_per_tok: int) -> PrefillCosts:
        """Estimated seconds of a layer by each way."""
        facts = self._facts(num_tokens, num_experts_per_tok)
        return prefill_costs(self.planner.rates, facts)

    def _facts(self, num_tokens: int, num_experts_per_tok: int) -> PrefillFacts:
        residency = self.residency
        return PrefillFacts(
            num_tokens=num_tokens,
            num_experts=residency.num_experts,
            num_experts_per_tok=num_experts_per_tok,
            row_bytes=self.row_bytes,
            num_resident=residency.num_resident / residency.num_layers,
            free_slots=residency.available(()),
            can_stream=self.buffer_experts > 0,
        )

"""Which way a wide step gets its experts: asks policy/prefill.py with the facts of the moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftengine.experts.partials import Routed
from ftengine.experts.policy.planner import Planner
from ftengine.experts.policy.prefill import PrefillFacts, buffer_experts, choose, prefill_costs
from ftengine.experts.policy.residency import Residency

DECODE, STREAM, CPU = "decode", "stream", "cpu"


@dataclass(frozen=True)
class WayChooser:
    """row_bytes: of the largest layer."""

    residency: Residency
    planner: Planner
    row_bytes: int

    @property
    def buffer_experts(self) -> int:
        """Experts in each of the two streaming buffers; 0 = this pool cannot stream."""
        return buffer_experts(self.residency.num_slots, self.residency.num_experts)

    def way(self, routed: Routed) -> str:
        """DECODE, STREAM or CPU for all layers of this step.

        Steps with fewer routed pairs than a layer has experts always take the decode path.
        """
        residency = self.residency
        strategy = self.planner.strategy
        if strategy == "resident" or routed.num_pairs < residency.num_experts:
            return DECODE
        facts = PrefillFacts(
            num_tokens=routed.num_tokens,
            num_experts=residency.num_experts,
            num_experts_per_tok=routed.expert_ids.shape[1],
            row_bytes=self.row_bytes,
            num_resident=residency.num_resident / residency.num_layers,
            free_slots=residency.available(()),
            can_stream=self.buffer_experts > 0,
        )
        if strategy == "fetch":
            # the decode path of this strategy has no CPU to share the misses with
            alone = replace(self.planner.rates, host_bytes_per_s=1.0, host_left_bytes_per_s=0.0)
            costs = prefill_costs(alone, facts)
            return STREAM if costs.stream < costs.decode else DECODE
        return choose(self.planner.rates, facts)

"""Miss rates of placements on one trace: LRU, static by prefill, whole layers. Counting, no clock.

The two fitted localities stand here with the figures they were fitted to.
"""

from __future__ import annotations

from collections import Counter

from ftengine.experts.policy.residency import Residency
from ftengine.experts.traces import Locality, Shape, Trace, synthetic

QWEN_LIKE = Locality(stay=0.31, focus=1.1, drift=0.03)
"""256 experts, 8 per token: LRU misses 16 % at a share of 37 %, static by prefill 41 %.

Source of the targets: arXiv 2608.16157, Figure 4b; fitted over three seeds of 500 steps.
"""
DEEPSEEK_LIKE = Locality(stay=0.21, focus=1.1, drift=0.014)
"""256 experts, 6 per token: LRU misses 39 % at a share of 11 %, static by prefill 59 %.

Source of the targets: arXiv 2608.16157, Figure 4b; fitted over three seeds of 500 steps.
"""
WARM_UP_STEPS = 100
"""Steps left out of a rate: a cold cache says nothing of locality."""


def qwen_like(num_layers: int, steps: int, seed: int) -> Trace:
    """A synthetic session with the locality of QWEN_LIKE."""
    return synthetic(Shape(num_layers, 256, 8, 512, steps), QWEN_LIKE, seed)


def deepseek_like(num_layers: int, steps: int, seed: int) -> Trace:
    """A synthetic session with the locality of DEEPSEEK_LIKE."""
    return synthetic(Shape(num_layers, 256, 6, 512, steps), DEEPSEEK_LIKE, seed)


def num_slots(trace: Trace, share: float) -> int:
    """Slots that hold `share` of all experts."""
    return round(share * trace.num_layers * trace.num_experts)


def lru_misses(trace: Trace, share: float, warm_up: int = WARM_UP_STEPS) -> float:
    """One LRU space for all layers, every miss filled."""
    pool = Residency(trace.num_layers, trace.num_experts, num_slots(trace, share))
    missed = asked = 0
    for idx, token in enumerate(trace.steps):
        for layer, experts in enumerate(token):
            found = pool.lookup(layer, experts)
            in_use = {slot for _, slot in found.hits}
            pool.admit(layer, found.misses[: pool.available(in_use)], in_use)
            if idx >= warm_up:
                missed += len(found.misses)
                asked += len(found.hits) + len(found.misses)
    return missed / max(asked, 1)


def static_misses(trace: Trace, share: float, warm_up: int = WARM_UP_STEPS) -> float:
    """The experts most used by the prompt stay in slots; nothing moves while decoding."""
    counts = Counter(
        (layer, expert)
        for token in trace.prompt
        for layer, experts in enumerate(token)
        for expert in experts
    )
    placed = {expert for expert, _ in counts.most_common(num_slots(trace, share))}
    return _outside(trace, warm_up, placed)


def layer_split_misses(trace: Trace, share: float, warm_up: int = WARM_UP_STEPS) -> float:
    """Whole layers in slots, the first ones, the last of them in part."""
    slots = num_slots(trace, share)
    placed = {divmod(number, trace.num_experts) for number in range(slots)}
    return _outside(trace, warm_up, placed)


def _outside(trace: Trace, warm_up: int, placed: set[tuple[int, int]]) -> float:
    missed = asked = 0
    for token in trace.steps[warm_up:]:
        for layer, experts in enumerate(token):
            missed += sum((layer, expert) not in placed for expert in experts)
            asked += len(experts)
    return missed / max(asked, 1)

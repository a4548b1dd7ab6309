"""Device memory: context first, then states, then expert slots; and when to resize them. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryNeeds:
    """What asks for device memory. Units: bytes unless named otherwise.

    fixed_bytes: non-expert weights, activations' peak and runtime. min_slots: fewest slots with
    which the chosen strategy can run (0 where the CPU computes every miss).
    """

    fixed_bytes: int
    kv_bytes_per_token: int
    context_tokens: int
    state_bytes: int
    slot_bytes: int
    num_experts_total: int
    min_slots: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """The division. need_bytes is the least that works; reason is empty where it fits."""

    kv_bytes: int
    state_bytes: int
    expert_slots: int
    spare_bytes: int
    need_bytes: int
    have_bytes: int
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether the request can be granted."""
        return not self.reason


@dataclass(frozen=True)
class Hysteresis:
    """When free memory moves the slots by itself. Units: bytes kept free; share of the slots.

    A shrink happens as soon as the reserve is touched; a growth only when it is worth a rebuild.
    """

    reserve_bytes: int = 512 << 20
    grow_share: float = 0.10


def divide(total_bytes: int, needs: MemoryNeeds) -> MemoryPlan:
    """Context, then states, then as many whole experts as fit, at most all of them."""
    kv_bytes = needs.kv_bytes_per_token * needs.context_tokens
    before_slots = needs.fixed_bytes + kv_bytes + needs.state_bytes
    need = before_slots + needs.min_slots * needs.slot_bytes
    if need > total_bytes:
        return MemoryPlan(
            *(kv_bytes, needs.state_bytes, 0, 0, need, total_bytes),
            reason=_reason(needs, kv_bytes, need, total_bytes),
        )
    left = total_bytes - before_slots
    slots = min(left // needs.slot_bytes, needs.num_experts_total) if needs.slot_bytes else 0
    spare = left - slots * needs.slot_bytes
    return MemoryPlan(kv_bytes, needs.state_bytes, slots, spare, need, total_bytes)


def context_that_fits(total_bytes: int, needs: MemoryNeeds) -> int:
    """Most tokens of context with the fewest slots; what a refusal can offer. 0 = none."""
    left = total_bytes - needs.fixed_bytes - needs.state_bytes - needs.min_slots * needs.slot_bytes
    return max(left // needs.kv_bytes_per_token, 0) if needs.kv_bytes_per_token else 0


def follow_free_memory(
    slots: int, free_bytes: int, needs: MemoryNeeds, rule: Hysteresis | None = None
) -> int:
    """Slots to have from the next safe point on, given the device's free bytes now.

    Returns `slots` itself where nothing should move.
    """
    rule = rule or Hysteresis()
    if needs.slot_bytes <= 0:
        return slots
    room = free_bytes - rule.reserve_bytes
    if room < 0:
        give = -(room // needs.slot_bytes)
        return max(slots - give, needs.min_slots)
    wanted = min(slots + room // needs.slot_bytes, needs.num_experts_total)
    return wanted if wanted - slots >= max(slots * rule.grow_share, 1) else slots


def _reason(needs: MemoryNeeds, kv_bytes: int, need: int, have: int) -> str:
    text = (
        f"{need / 1e9:.2f} GB needed, {have / 1e9:.2f} GB there: "
        f"{needs.fixed_bytes / 1e9:.2f} GB weights and activations, "
        f"{kv_bytes / 1e9:.2f} GB for {needs.context_tokens} tokens of context"
    )
    if needs.state_bytes:
        text += f", {needs.state_bytes / 1e9:.2f} GB states"
    if needs.min_slots:
        text += f", {needs.min_slots} expert slots of {needs.slot_bytes / 1e6:.1f} MB"
    return text

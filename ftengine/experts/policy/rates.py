"""What the planner knows of a machine, and its live correction. No clocks: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace

_EWMA = 0.1
"""Weight of one observation."""
_BOUND = 4.0
"""A correction never leaves 1/4 .. 4 of the calibrated rate: beyond it something else is wrong."""
_STEP_BOUND = 2.0
"""One observation counts as at most twice or half of the present estimate."""


@dataclass(frozen=True)
class Rates:
    """Measured rates of one machine. Units: bytes of expert weights per second; seconds.

    host_bytes_per_s: the CPU expert kernel alone (B_H). host_left_bytes_per_s: the same while the
    link is saturated (B_R). link_latency_s once per batch of copies, copy_latency_s per expert in
    it, cpu_latency_s once per call of the CPU branch. device_bytes_per_s: device expert kernel.
    cpu_free_tokens: tokens in a step up to which the CPU kernel is bound by memory.
    """

    link_bytes_per_s: float
    host_bytes_per_s: float
    host_left_bytes_per_s: float
    link_latency_s: float = 10e-6
    copy_latency_s: float = 1e-6
    cpu_latency_s: float = 10e-6
    device_bytes_per_s: float = 1e12
    cpu_free_tokens: int = 8

    def __post_init__(self) -> None:
        """Raises: ValueError naming the rate that is not positive (B_R may be 0)."""
        for name in ("link_bytes_per_s", "host_bytes_per_s", "device_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.host_left_bytes_per_s < 0:
            raise ValueError(f"host_left_bytes_per_s is {self.host_left_bytes_per_s}, below 0")

    def with_error(self, link: float, host: float) -> Rates:
        """The same machine misjudged: link and host rates times these factors."""
        return replace(
            self,
            link_bytes_per_s=self.link_bytes_per_s * link,
            host_bytes_per_s=self.host_bytes_per_s * host,
            host_left_bytes_per_s=self.host_left_bytes_per_s * host,
        )

    @property
    def fill_period(self) -> int:
        """Missing steps of a layer among which one fill is owed: ceil(B_H / B_P) + 1."""
        return -int(-self.host_bytes_per_s // self.link_bytes_per_s) + 1


@dataclass(frozen=True)
class Corrected:
    """Rates with one factor for the link and one for each state of the CPU branch."""

    base: Rates
    link: float = 1.0
    host: float = 1.0
    host_left: float = 1.0

    @property
    def rates(self) -> Rates:
        """The rates to plan with now."""
        return replace(
            self.base,
            link_bytes_per_s=self.base.link_bytes_per_s * self.link,
            host_bytes_per_s=self.base.host_bytes_per_s * self.host,
            host_left_bytes_per_s=self.base.host_left_bytes_per_s * self.host_left,
        )

    def saw_fill(self, predicted_s: float, observed_s: float) -> Corrected:
        """Fold in one batch of copies. Times without latencies; 0 or less tells nothing."""
        return replace(self, link=_folded(self.link, predicted_s, observed_s))

    def saw_cpu(self, predicted_s: float, observed_s: float, link_busy: bool) -> Corrected:
        """Fold in one CPU branch, alone or beside a busy link: kept apart."""
        if link_busy:
            left = _folded(self.host_left, predicted_s, observed_s)
            return replace(self, host_left=left)
        return replace(self, host=_folded(self.host, predicted_s, observed_s))


def _folded(factor: float, predicted_s: float, observed_s: float) -> float:
    if predicted_s <= 0 or observed_s <= 0:
        return factor
    ratio = min(max(predicted_s / observed_s, 1 / _STEP_BOUND), _STEP_BOUND)
    moved = factor * (1 + _EWMA * (ratio - 1))
    return min(max(moved, 1 / _BOUND), _BOUND)

"""Divisions of misses that planner.py is measured against: constant share, the paper's, rounding.

None of them is offered to users. All have the two methods of Planner that a replay calls.
"""

from __future__ import annotations

from typing import Protocol

from ftengine.experts.policy.planner import Split
from ftengine.experts.policy.rates import Rates
from ftengine.experts.policy.residency import Signs


class Divider(Protocol):
    """What a replay needs of a planner."""

    def split(
        self,
        layer: int,
        num_misses: int,
        num_tokens: int,
        max_fills: int,
        num_hits: int = 0,
        signs: Signs | None = None,
    ) -> Split:
        """Divide the misses of one layer."""
        ...

    def observe(self, layer: int, split: Split, fill_s: float, cpu_s: float) -> None:
        """Take note of measured times."""
        ...


class ConstantShare:
    """A fixed share of the misses is filled; the fraction is carried over by layer.

    share 0 is CPU-only and 1 fetch-only.
    """

    def __init__(self, share: float, num_layers: int) -> None:
        self._share = share
        self._carry = [0.0] * num_layers

    def split(
        self,
        layer: int,
        num_misses: int,
        num_tokens: int,
        max_fills: int,
        num_hits: int = 0,
        signs: Signs | None = None,
    ) -> Split:
        """floor(carry + share * misses), the rest carried to the layer's next step."""
        wanted = self._carry[layer] + self._share * num_misses
        fills = min(int(wanted + 1e-9), num_misses, max_fills)
        self._carry[layer] = min(wanted - fills, 1.0)
        return Split(fills, num_misses - fills)

    def observe(self, layer: int, split: Split, fill_s: float, cpu_s: float) -> None:
        """Constant: learns nothing."""


class RoundedShare:
    """q = round(m * B_P / B_H) at every step, as in equation 4; minimum 1 is the paper's rule.

    With minimum 0 a machine whose share is below one half at its usual m never fills anything.
    Source: arXiv 2608.16157, equation 4 and the text below it.
    """

    def __init__(self, rates: Rates, minimum: int) -> None:
        self._share = min(rates.link_bytes_per_s / rates.host_bytes_per_s, 1.0)
        self._minimum = minimum

    def split(
        self,
        layer: int,
        num_misses: int,
        num_tokens: int,
        max_fills: int,
        num_hits: int = 0,
        signs: Signs | None = None,
    ) -> Split:
        """Rounded to the nearest integer, at least the minimum."""
        wanted = max(int(num_misses * self._share + 0.5), self._minimum)
        fills = min(wanted, num_misses, max_fills)
        return Split(fills, num_misses - fills)

    def observe(self, layer: int, split: Split, fill_s: float, cpu_s: float) -> None:
        """Fixed by calibration: learns nothing."""

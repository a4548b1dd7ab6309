"""How often each expert was demanded lately: counts that fade with every step of the model. Pure.

A device keeps the same as one float per (layer, expert) with the lookup it was last touched in.
"""

from __future__ import annotations

_FADE = 0.96
"""Of a count, per step: some 25 steps are remembered. Anything from 0.83 to 0.99 served well."""


class Demand:
    """Faded counts by (layer, expert)."""

    def __init__(self, num_layers: int) -> None:
        self._fade = _FADE ** (1.0 / num_layers)
        self._counts: dict[tuple[int, int], tuple[float, int]] = {}

    def of(self, expert: tuple[int, int], lookup: int) -> float:
        """The count as of this lookup (lookups of all layers are numbered together)."""
        found = self._counts.get(expert)
        if found is None:
            return 0.0
        count, then = found
        return float(count * self._fade ** (lookup - then))

    def note(self, expert: tuple[int, int], lookup: int) -> None:
        """Count one demand in this lookup."""
        self._counts[expert] = (self.of(expert, lookup) + 1.0, lookup)

"""Which experts' rows are kept in memory while the others may go to disk: those read most. Pure.

Locking is device/locked_memory.py's business, counting what was really read hot.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Row = tuple[int, int]
"""(bank, expert)."""
_EVERY = 128
"""Demands between two changes: a few steps, since each layer of a step is one."""
_FADE = 0.998
"""Weight of a demand against that of the next one: a few hundred demands are remembered."""
_STAYS = 1.25
"""A locked row goes only for one that is wanted so much more often."""
_TOO_LARGE = 1e100


@dataclass(frozen=True)
class Change:
    """What to do now, unlocking first."""

    unlock: tuple[Row, ...]
    lock: tuple[Row, ...]


class HotRows:
    """Counts demands, recent ones more, and names the rows that are worth the budget.

    Units: budget_bytes of whole rows; every: demands from one change to the next.
    """

    def __init__(self, budget_bytes: int, every: int = _EVERY) -> None:
        self.budget_bytes = budget_bytes
        self._every = every
        self._row_bytes: list[int] = []
        self._scores: dict[Row, float] = {}
        self._held: set[Row] = set()
        self._weight = 1.0
        self._demands = 0

    @property
    def held(self) -> frozenset[Row]:
        """Rows that were told to be locked and not to be unlocked since."""
        return frozenset(self._held)

    @property
    def held_bytes(self) -> int:
        """Their size; never above the budget."""
        return sum(self._row_bytes[bank] for bank, _ in self._held)

    def add_bank(self, row_bytes: int) -> int:
        """The number of the next bank, whose rows are this large."""
        self._row_bytes.append(row_bytes)
        return len(self._row_bytes) - 1

    def demand(self, bank: int, experts: Iterable[int]) -> Change | None:
        """Count rows that are read now. Returns what to change, now and then."""
        self._weight /= _FADE
        for expert in experts:
            row = (bank, expert)
            self._scores[row] = self._scores.get(row, 0.0) + self._weight
        if self._weight > _TOO_LARGE:
            self._scores = {row: score / self._weight for row, score in self._scores.items()}
            self._weight = 1.0
        self._demands += 1
        if self._demands % self._every:
            return None
        return self._change()

    def give_up(self) -> tuple[Row, ...]:
        """Hold nothing any more, and want nothing. Returns what was held."""
        held, self._held, self.budget_bytes = tuple(self._held), set(), 0
        return held

    def _change(self) -> Change | None:
        wanted = self._wanted(self._scores)
        if wanted == self._held:
            return None
        unlock, lock = self._held - wanted, wanted - self._held
        self._held = wanted
        return Change(tuple(sorted(unlock)), tuple(sorted(lock)))

    def _wanted(self, scores: Mapping[Row, float]) -> set[Row]:
        def worth(row: Row) -> float:
            score = scores[row] * (_STAYS if row in self._held else 1.0)
            return score / self._row_bytes[row[0]]

        left, wanted = self.budget_bytes, set()
        # equal scores in order of the rows, so that the same demands give the same answer
        for row in sorted(sorted(scores), key=worth, reverse=True):
            size = self._row_bytes[row[0]]
            if size <= left:
                left -= size
                wanted.add(row)
            elif left < min(self._row_bytes):
                break
        return wanted

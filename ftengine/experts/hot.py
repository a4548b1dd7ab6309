"""Rows of mapped banks that are kept in memory because they are read most often.

Which ones: policy/hot_rows.py. A refusal of the system ends it and is told once: locking makes an
engine faster, nothing needs it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ftengine.device import locked_memory
from ftengine.experts.policy.hot_rows import Change, HotRows, Row

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Place:
    """Where a bank's rows lie. Units: bytes."""

    address: int
    row_bytes: int


class LockedRows:
    """Told of every read of a row; locks and unlocks now and then. Threads may call it together.

    room_bytes: memory that may be locked, further limited by RLIMIT_MEMLOCK.
    """

    def __init__(
        self, room_bytes: int, limit: Callable[[], int | None] = locked_memory.lockable_bytes
    ) -> None:
        allowed = limit()
        self._allowed = allowed
        self._room_bytes = max(room_bytes, 0)
        budget = self._room_bytes if allowed is None else min(self._room_bytes, allowed)
        self._hot = HotRows(budget)
        self._places: list[_Place] = []
        self._mutex = threading.Lock()
        self._refused = ""

    @property
    def locked_bytes(self) -> int:
        """Bytes of the rows that are locked now."""
        return self._hot.held_bytes

    @property
    def note(self) -> str:
        """What a person should know; empty where there are no banks."""
        if not self._places:
            return ""
        row = min(place.row_bytes for place in self._places)
        if self._refused:
            return f"no experts are locked in memory: {self._refused}"
        if self._hot.budget_bytes >= row:
            size = f"{self._hot.budget_bytes / 1e6:.0f} MB"
            return f"the experts read most often are locked in memory, up to {size}"
        why = f"{self._room_bytes / 1e6:.1f} MB of memory can be spared for that"
        if self._allowed is not None and self._allowed < row <= self._room_bytes:
            why = (
                f"RLIMIT_MEMLOCK allows {self._allowed / 1e6:.1f} MB (raise it with ulimit -l, or "
                f"LimitMEMLOCK= of the service)"
            )
        return f"no experts are locked in memory: one needs {row / 1e6:.1f} MB and {why}"

    def add_bank(self, address: int, row_bytes: int) -> Callable[[Iterable[int]], None]:
        """Take a bank; returns what to call with the experts that are read from it."""
        self._places.append(_Place(address, row_bytes))
        bank = self._hot.add_bank(row_bytes)
        self._try_out(bank)

        def reads(experts: Iterable[int]) -> None:
            self._read(bank, experts)

        return reads

    def _try_out(self, bank: int) -> None:
        """Lock and unlock one row, so that a refusal is known when the model is loaded."""
        if self._hot.budget_bytes >= self._places[bank].row_bytes:
            self._apply(Change((), ((bank, 0),)))
            self._apply(Change(((bank, 0),), ()))

    def _read(self, bank: int, experts: Iterable[int]) -> None:
        if self._refused or self._hot.budget_bytes < self._places[bank].row_bytes:
            return
        with self._mutex:
            change = self._hot.demand(bank, experts)
            if change is not None:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        if self._refused:
            return
        try:
            for row in change.unlock:
                locked_memory.unlock(*self._range(row))
            for row in change.lock:
                locked_memory.lock(*self._range(row))
        except OSError as error:
            self._refused = f"the system refused ({error.strerror})"
            log.warning("no experts are locked in memory any more: %s", self._refused)
            self._let_go()

    def _let_go(self) -> None:
        for row in self._hot.give_up():
            try:
                locked_memory.unlock(*self._range(row))
            except OSError as error:
                log.debug("unlocking %s failed: %s", row, error)

    def _range(self, row: Row) -> tuple[int, int]:
        place = self._places[row[0]]
        return place.address + row[1] * place.row_bytes, place.row_bytes

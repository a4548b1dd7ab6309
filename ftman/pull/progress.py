"""What a pull tells its viewers, and the rate it goes at. No I/O here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ftman.clock import Clock

EMIT_EVERY_S = 0.06
RATE_WINDOW_S = 5.0


@dataclass(frozen=True)
class Progress:
    """One step of a pull. Units: bytes; rate in bytes per second.

    status is Ollama's text ("pulling manifest", "success", ...); phase is one of resolve, download,
    verify, convert, install, done; detail is free text for people.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
    phase: str = ""
    detail: str = ""
    rate_bytes_per_s: float = 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the present rate; None when that is unknown."""
        if self.rate_bytes_per_s <= 0 or self.completed >= self.total:
            return None
        return (self.total - self.completed) / self.rate_bytes_per_s


Emit = Callable[[Progress], None]


class RateMeter:
    """Bytes per second over the last few seconds of the monotonic clock."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque([(clock.monotonic(), 0)])
        self._sum = 0

    def add(self, count: int) -> None:
        """Count bytes that arrived just now (negative when they had to be dropped)."""
        self._sum += count
        now = self._clock.monotonic()
        if now - self._points[-1][0] > EMIT_EVERY_S:
            self._points.append((now, self._sum))
        while len(self._points) > 2 and now - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()

    def rate(self) -> float:
        """Present rate; 0 before the first tenth of a second."""
        started, before = self._points[0]
        age = self._clock.monotonic() - started
        return max(0.0, (self._sum - before) / age) if age > 0.1 else 0.0


class Bar:
    """One progress bar: counts bytes and emits at most every 60 ms, and at its end."""

    def __init__(self, emit: Emit, clock: Clock, first: Progress):
        self._emit = emit
        self._clock = clock
        self._first = first
        self._meter = RateMeter(clock)
        self._last = float("-inf")
        self.completed = 0
        self.total = first.total
        self.detail = first.detail

    def have(self, count: int) -> None:
        """Count bytes that were there before this run: they do not enter the rate."""
        self.completed += count
        self._show()

    def add(self, count: int) -> None:
        """Count bytes that arrived; negative ones were dropped again."""
        if not count:
            return
        self.completed += count
        self._meter.add(count)
        self._show()

    def set(self, completed: int, total: int) -> None:
        """Take over numbers counted elsewhere."""
        self.total = total
        self.add(completed - self.completed)

    def _show(self) -> None:
        now = self._clock.monotonic()
        if now - self._last < EMIT_EVERY_S and self.completed < self.total:
            return
        self._last = now
        first = self._first
        self._emit(
            Progress(
                first.status,
                first.digest,
                self.total,
                max(0, min(self.completed, self.total)),
                first.phase,
                self.detail,
                self._meter.rate(),
            )
        )

"""Progress of pull, create and calibrate: phase, bytes, rate, ETA.

On a terminal one line is redrawn with carriage returns and spaces; elsewhere a plain line comes
every few seconds and there are no control codes at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from ftman.cli.output import Output, columns, safe
from ftman.cli.units import clock_span, human_bytes
from ftman.clock import SYSTEM, Clock
from ftman.errors import FtmanError

PLAIN_EVERY_S = 5.0
REDRAW_EVERY_S = 0.1
RATE_WINDOW_S = 10.0
BAR_CELLS = 20
SUCCESS = "success"


class Rate:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def feed(self, now_s: float, completed: int) -> float:
        """Add a reading; returns the rate. A fall in `completed` starts over."""
        if self._points and completed < self._points[-1][1]:
            self._points.clear()
        self._points.append((now_s, completed))
        while len(self._points) > 2 and now_s - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()
        first_s, first = self._points[0]
        return (completed - first) / (now_s - first_s) if now_s > first_s else 0.0


class ProgressView:
    """Shows the progress objects of one stream."""

    def __init__(self, out: Output, clock: Clock = SYSTEM):
        self._out = out
        self._clock = clock
        self._status = ""
        self._rate = Rate()
        self._drawn = 0
        self._last_s = float("-inf")
        self._shown_complete = False

    def feed(self, item: Mapping[str, Any]) -> None:
        """Show one object."""
        if self._out.as_json:
            self._out.json_line(item)
            return
        if self._out.quiet:
            return
        status = str(item.get("status", ""))
        if status != self._status:
            self._begin(status)
        total = _count(item.get("total"))
        if total:
            self._show_bytes(item, total)
        elif self._last_s == float("-inf"):
            self._line(status)
            self._last_s = self._clock.monotonic()

    def close(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._drawn:
            print(file=self._out.stderr, flush=True)
            self._drawn = 0

    def _begin(self, status: str) -> None:
        self.close()
        self._status = status
        self._rate = Rate()
        self._last_s = float("-inf")
        self._shown_complete = False

    def _show_bytes(self, item: Mapping[str, Any], total: int) -> None:
        completed = min(_count(item.get("completed")), total)
        now = self._clock.monotonic()
        rate = self._rate.feed(now, completed)
        rate = float(item.get("rate_bytes_per_s") or 0) or rate
        done = completed >= total
        every = REDRAW_EVERY_S if self._out.stderr_is_tty else PLAIN_EVERY_S
        if now - self._last_s < every and not (done and not self._shown_complete):
            return
        self._last_s = now
        self._shown_complete = self._shown_complete or done
        self._line(self._bar_text(item, completed, total, rate))

    def _bar_text(self, item: Mapping[str, Any], completed: int, total: int, rate: float) -> str:
        percent, unit = completed * 100 // total, item.get("unit")
        done = f"{human_bytes(completed)}/{human_bytes(total)}"
        parts = [f"{percent:3d} %", f"{completed} of {total} {unit}" if unit else done]
        if completed < total and rate > 0 and not unit:
            parts.append(f"{human_bytes(rate)}/s")
            parts.append(f"ETA {clock_span((total - completed) / rate)}")
        if item.get("detail"):
            parts.append(str(item["detail"]))
        head = self._status
        if self._out.stderr_is_tty:
            filled = completed * BAR_CELLS // total
            bar = "#" * filled + "-" * (BAR_CELLS - filled)
            if len(head) + BAR_CELLS + len("   ".join(parts)) + 6 < columns():
                head = f"{head}  [{bar}]"
        return f"{head}  {'   '.join(parts)}"

    def _line(self, text: str) -> None:
        text = safe(text)
        if not self._out.stderr_is_tty:
            print(text, file=self._out.stderr, flush=True)
            return
        text = text[: columns() - 1]
        padded = text.ljust(min(self._drawn, columns() - 1))
        print(f"\r{padded}", end="", file=self._out.stderr, flush=True)
        self._drawn = len(text)


def follow(
    stream: Iterable[Mapping[str, Any]], out: Output, clock: Clock = SYSTEM
) -> Mapping[str, Any]:
    """Show a stream of progress until "success"; returns its last object.

    Raises: FtmanError when it just ends.
    """
    view = ProgressView(out, clock)
    last: Mapping[str, Any] = {}
    status = ""
    try:
        for item in stream:
            view.feed(item)
            last = item
            status = str(item.get("status", status))
    finally:
        view.close()
    if status != SUCCESS:
        raise FtmanError(
            f"the manager ended the stream at {status!r}, before it was done",
            hint="Look at: ft logs",
            code="stream_ended",
        )
    return last


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0

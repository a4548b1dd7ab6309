"""Is this engine healthy? Judges a series of health answers, or their absence. Pure.

Loading may take as long as it likes while bytes still move; a ready engine may take as long as it
likes per request while steps still finish.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftman.errors import EngineDiedError
from ftman.supervisor.client import Health


@dataclass(frozen=True)
class Timings:
    """Deadlines of one engine process. Units: seconds.

    drain_s: from SIGTERM to SIGKILL. wedge_s: pending work without a finished step, or no answer.
    orphan_probe_s: how long an engine of an earlier manager may take to answer at start. quiet_s:
    without work before an engine is prepared for the next model.
    """

    poll_s: float = 1.0
    first_poll_s: float = 0.1
    probe_s: float = 5.0
    hello_s: float = 60.0
    load_s: float = 300.0
    wedge_s: float = 30.0
    drain_s: float = 20.0
    cause_s: float = 1.0
    orphan_probe_s: float = 1.0
    quiet_s: float = 2.0


class HealthJudge:
    """Fed with every poll of one engine; answers with the reason to replace it, or None.

    loaded: it was ready before the first poll, so silence from the start is no slow load.
    """

    def __init__(self, name: str, timings: Timings, now_s: float, *, loaded: bool = False):
        self._name = name
        self._loaded = loaded
        self._timings = timings
        self._answered_s = now_s
        self._num_silent = 0
        self._progress_s = now_s
        self._busy_s: float | None = None
        self._last: Health | None = None
        self.stuck_s = 0.0
        """How long a loaded engine has had work without a finished step, or gave no answer."""

    def answered(self, health: Health, now_s: float) -> EngineDiedError | None:
        """Judge one answer."""
        last, self._last = self._last, health
        self._answered_s, self._num_silent, self.stuck_s = now_s, 0, 0.0
        if health.state == "failed":
            return self._load_failed(health.error or "the engine gave no reason")
        if health.state == "loading":
            if last is None or health.loaded_bytes != last.loaded_bytes:
                self._progress_s = now_s
            return self._load_stalled(now_s)
        return self._judge_steps(health, now_s)

    def silent(self, now_s: float) -> EngineDiedError | None:
        """Judge a poll that brought no answer."""
        state = self._last.state if self._last is not None else ""
        if state == "loading" or (not state and not self._loaded):
            return self._load_stalled(now_s)
        # One late answer proves nothing: this manager itself may have stood still.
        self._num_silent += 1
        self.stuck_s = now_s - self._answered_s
        if self.stuck_s < self._timings.wedge_s or self._num_silent < 2:
            return None
        return self._wedged("gave no answer")

    def _judge_steps(self, health: Health, now_s: float) -> EngineDiedError | None:
        if health.running + health.waiting == 0:
            self._busy_s = None
            return None
        if self._busy_s is None:
            self._busy_s = now_s
        # An engine that was idle for an hour has an hour-old step: only busy time counts.
        stepped_s = now_s - health.last_step_s if health.last_step_s is not None else self._busy_s
        self.stuck_s = now_s - max(self._busy_s, stepped_s)
        if self.stuck_s < self._timings.wedge_s:
            return None
        return self._wedged(f"has {health.running} running requests but made no step")

    def _load_stalled(self, now_s: float) -> EngineDiedError | None:
        since_s = now_s - self._progress_s
        if since_s < self._timings.load_s:
            return None
        return self._load_failed(
            f"no progress for {since_s:.0f} s",
            hint="Check the disk, or raise load_timeout_s (FT_LOAD_TIMEOUT_S).",
        )

    def _load_failed(self, reason: str, hint: str = "") -> EngineDiedError:
        return EngineDiedError(
            f"{self._name} could not be loaded: {reason}", hint=hint, code="load_failed"
        )

    def _wedged(self, reason: str) -> EngineDiedError:
        return EngineDiedError(
            f"the engine of {self._name} {reason} for {self._timings.wedge_s:g} s and is replaced",
            hint="Send the request again.",
            code="engine_wedged",
        )

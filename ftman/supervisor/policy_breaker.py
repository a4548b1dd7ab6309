"""The breaker: engines that keep failing to start are left alone for a while. Pure.

Three failed starts within a minute open it; it then lets one try through after 10 s, 20 s, ... up
to 5 minutes. A start that succeeds or a changed spec closes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ftman.errors import BusyError, FtmanError
from ftman.supervisor.policy_events import EngineSpec, Limits


@dataclass
class _Streak:
    spec: EngineSpec
    failures: list[tuple[float, FtmanError]] = field(default_factory=list)
    backoff_s: float = 0.0
    open_until_s: float = 0.0


class Breaker:
    """Failed starts per engine key. Times are the caller's monotonic seconds."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._streaks: dict[str, _Streak] = {}

    def succeeded(self, spec: EngineSpec) -> None:
        """Forget the failures of this key."""
        self._streaks.pop(spec.key, None)

    def failed(self, spec: EngineSpec, now_s: float, error: FtmanError) -> None:
        """Note a failed start; the third one within the window opens the breaker."""
        streak = self._streaks.get(spec.key)
        if streak is None or not streak.spec.same_engine(spec):
            streak = self._streaks[spec.key] = _Streak(spec)
        if streak.backoff_s:
            streak.backoff_s = min(streak.backoff_s * 2, self._limits.last_backoff_s)
        else:
            oldest_s = now_s - self._limits.failure_window_s
            streak.failures = [item for item in streak.failures if item[0] >= oldest_s]
            streak.failures.append((now_s, error))
            if len(streak.failures) < self._limits.failures_to_open:
                return
            streak.backoff_s = self._limits.first_backoff_s
        streak.open_until_s = now_s + streak.backoff_s

    def refusal(self, spec: EngineSpec, now_s: float) -> BusyError | None:
        """The error for a request that must not start this engine now, or None."""
        streak = self._streaks.get(spec.key)
        if streak is None or now_s >= streak.open_until_s or not streak.spec.same_engine(spec):
            return None
        first = streak.failures[0][1]
        wait_s = math.ceil(streak.open_until_s - now_s)
        error = BusyError(
            f"{spec.name} failed to start {len(streak.failures)} times in a row and is not tried "
            f"again for {wait_s} s; the first cause: {first.message}",
            hint=first.hint or "Mend the cause, or change a setting of the model to try at once.",
            code="engine_failing",
        )
        error.retry_after_s = wait_s
        return error

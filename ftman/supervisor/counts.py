"""What happened to engines since this manager started: loads, unloads, deaths. Only counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ftman.supervisor.process import EngineProcess


@dataclass
class EngineCounts:
    """Counters by model name; written by the supervisor alone. Units: load_s seconds in all.

    unloads by (model, reason): "idle", "evicted", "reload", "cancelled", "shutdown". deaths by
    (model, code) of what nobody asked for.
    """

    loads: Counter[str] = field(default_factory=Counter)
    load_s: dict[str, float] = field(default_factory=dict)
    load_failures: Counter[str] = field(default_factory=Counter)
    unloads: Counter[tuple[str, str]] = field(default_factory=Counter)
    deaths: Counter[tuple[str, str]] = field(default_factory=Counter)
    _started_s: dict[int, float] = field(default_factory=dict)

    def started(self, engine_id: int, now_s: float) -> None:
        """A process is being started."""
        self._started_s[engine_id] = now_s

    def loaded(self, engine_id: int, name: str, now_s: float) -> None:
        """It answers as ready."""
        self.loads[name] += 1
        # one that was taken over from an earlier manager was not loaded by us
        seconds = now_s - self._started_s.pop(engine_id, now_s)
        self.load_s[name] = self.load_s.get(name, 0.0) + seconds

    def gone(self, process: EngineProcess, code: str) -> None:
        """It is gone, by our wish or not."""
        name = process.spec.name
        loading = self._started_s.pop(process.engine_id, None) is not None
        if code == "engine_stopped":
            self.unloads[name, process.stop_reason] += 1
        elif loading or code == "load_failed":
            self.load_failures[name] += 1
        else:
            self.deaths[name, code] += 1

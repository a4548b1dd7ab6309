"""The vocabulary of the supervisor's policy: what an engine is, events in, effects out.

Plain frozen data. Who acts on it: policy.py (pure) and supervisor.py (performs effects).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftman.errors import FtmanError


@dataclass(frozen=True)
class EngineSpec:
    """One engine as it is to be started. key is the FTW id; at most one engine runs per key.

    Units: context_tokens per sequence; need_bytes of RAM: weights, KV cache, and what was asked for
    parked conversations.
    """

    key: str
    name: str
    ftw_path: Path
    context_tokens: int
    num_parallel: int
    device: str
    compute: str
    threads: int
    need_bytes: int

    def same_engine(self, other: EngineSpec) -> bool:
        """Whether an engine started for `other` can serve this; name and estimate do not count."""
        return self._load_settings() == other._load_settings()

    def _load_settings(self) -> tuple[object, ...]:
        return (
            self.key,
            self.ftw_path,
            self.context_tokens,
            self.num_parallel,
            self.device,
            self.compute,
            self.threads,
        )


@dataclass(frozen=True)
class Memory:
    """RAM of this machine (or of its cgroup). Units: bytes."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Arrived:
    """A request wants an engine. keep_alive_s None = leave as it is, negative = forever.

    background: it gives way to the others, but not for ever.
    """

    request_id: int
    spec: EngineSpec
    keep_alive_s: float | None = None
    background: bool = False


@dataclass(frozen=True)
class Cancelled:
    """A request that had not been answered yet went away."""

    request_id: int


@dataclass(frozen=True)
class Released:
    """A request that had been granted is done with its engine."""

    request_id: int


@dataclass(frozen=True)
class Loaded:
    """An engine that was started answers as ready. promised_bytes: as Engine has it."""

    engine_id: int
    promised_bytes: int = 0


@dataclass(frozen=True)
class Failing:
    """A ready engine is found dead, lying or hanging; Exited follows when all of it is gone."""

    engine_id: int


@dataclass(frozen=True)
class Exited:
    """An engine process is gone, wanted or not; `error` is what its users are told."""

    engine_id: int
    error: FtmanError


@dataclass(frozen=True)
class Adopted:
    """An engine left running by an earlier manager is healthy and ours now; else as Loaded."""

    engine_id: int
    spec: EngineSpec
    promised_bytes: int = 0


@dataclass(frozen=True)
class UnloadAsked:
    """Somebody wants the engine of `key` gone as soon as it is idle."""

    key: str


@dataclass(frozen=True)
class Ticked:
    """Time passed, or free memory may have changed."""


@dataclass(frozen=True)
class ShutdownAsked:
    """The manager ends: nothing new is admitted, every engine is stopped."""


PolicyEvent = (
    Arrived
    | Cancelled
    | Released
    | Loaded
    | Failing
    | Exited
    | Adopted
    | UnloadAsked
    | Ticked
    | ShutdownAsked
)


@dataclass(frozen=True)
class StartEngine:
    """Start a process; answer with Loaded or Exited."""

    engine_id: int
    spec: EngineSpec


@dataclass(frozen=True)
class StopEngine:
    """Drain and end a process; answer with Exited."""

    engine_id: int
    reason: str


@dataclass(frozen=True)
class Grant:
    """The request may use the engine; answer with Released when it is done."""

    request_id: int
    engine_id: int


@dataclass(frozen=True)
class Reject:
    """The request ends with this error."""

    request_id: int
    error: FtmanError


Effect = StartEngine | StopEngine | Grant | Reject


@dataclass(frozen=True)
class Limits:
    """The policy's settings. Units: seconds; max_queue counts requests waiting anywhere.

    background_s: so long a background request gives way; then it is like any other.
    """

    max_queue: int = 512
    max_loaded_models: int = 3
    keep_alive_s: float = 300.0
    failures_to_open: int = 3
    failure_window_s: float = 60.0
    first_backoff_s: float = 10.0
    last_backoff_s: float = 300.0
    background_s: float = 60.0

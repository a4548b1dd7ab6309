"""Helpers of the supervisor's tests: specs, a supervisor over fake engines, process checks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftman.clock import SYSTEM
from ftman.config import Config, EngineSettings, Paths
from ftman.supervisor.client import Event, GenerateRequest, TokenEvent
from ftman.supervisor.device_memory import Probe, free_bytes
from ftman.supervisor.supervisor import EngineSpec, Lease, Memory, Supervisor, Timings
from tests.fakes.engine import FakeLauncher, Scripts

QUICK = Timings(poll_s=0.05, probe_s=0.3, hello_s=10, wedge_s=20, drain_s=1.0, cause_s=1.0)
DRIVEN = Timings(poll_s=0.5, probe_s=250, hello_s=500, wedge_s=1000, drain_s=250, cause_s=250)
"""Deadlines on a FakeClock: `drive` lets 50 of its seconds pass in one that processes have."""
GIB = 1 << 30


def make_spec(key: str = "aaaa", **changes: Any) -> EngineSpec:
    spec = EngineSpec(
        key, f"{key}:tiny", Path("/nowhere") / key, 4096, 2, "cpu", "bfloat16", 1, 1 * GIB
    )
    return replace(spec, **changes)


def make_config(home: Path, *, adopt: bool = False, **changes: Any) -> Config:
    paths = Paths(home, home / "models")
    return Config(paths=paths, engine=EngineSettings(adopt=adopt), **changes)


@contextlib.asynccontextmanager
async def supervised(
    home: Path,
    script: Scripts,
    *,
    clock: Any = SYSTEM,
    timings: Timings | None = None,
    available_bytes: int = 8 * GIB,
    probe: Probe = free_bytes,
    **changes: Any,
) -> AsyncIterator[tuple[Supervisor, FakeLauncher]]:
    """A started supervisor over fake engines; closed at the end, whatever happens.

    timings: None = QUICK, or DRIVEN on a clock that is not the system's.
    """
    launcher = FakeLauncher(script)
    supervisor = Supervisor(
        make_config(home, **changes),
        clock,
        launcher,
        timings=timings or (QUICK if clock is SYSTEM else DRIVEN),
        memory=lambda: Memory(16 * GIB, available_bytes),
        probe=probe,
    )
    await supervisor.start()
    try:
        yield supervisor, launcher
    finally:
        await supervisor.close()


async def ask(lease: Lease, prompt: tuple[int, ...] = (1, 2, 3), max_tokens: int = 4) -> list[int]:
    """The ids one generation answers with."""
    found: list[int] = []
    request = GenerateRequest("r", prompt, max_tokens=max_tokens)
    async for event in lease.client.generate(request):
        found += ids_of(event)
    return found


def ids_of(event: Event) -> tuple[int, ...]:
    return event.token_ids if isinstance(event, TokenEvent) else ()


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for a condition of the real world.   Raises: AssertionError when it does not come."""
    deadline = SYSTEM.monotonic() + within_s
    while not condition():
        assert SYSTEM.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def timed(awaitable: Awaitable[Any]) -> float:
    """Seconds an awaitable takes."""
    begin = SYSTEM.monotonic()
    await awaitable
    return SYSTEM.monotonic() - begin


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def left_overs(home: Path) -> list[str]:
    """What engines left in the run folder."""
    run = home / "run"
    return sorted(os.fspath(p.relative_to(run)) for p in run.rglob("*") if not p.is_dir())

"""The machine's measured rates: taken once per machine by a child process, kept in one small file.

What is measured stands in `ftengine.calibrate`; here lives when, the cache, and its key. A failed
measurement never stops a model from loading: rates only steer, they do not decide what is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftman import __version__, files
from ftman.config import EngineSettings, Paths, engine_environment
from ftman.errors import FtmanError
from ftman.supervisor import hardware
from ftman.waits import end_child, result_within

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "ftengine.calibrate")
TIMEOUT_S = 120.0
CACHE_LIMIT_BYTES = 1 << 20
_STOP_S = 5.0


@dataclass(frozen=True)
class Step:
    """How far a measurement is; `profile` is set on the last one."""

    phase: str
    completed: int
    total: int
    profile: Mapping[str, Any] | None = None


class Calibration:
    """Knows, or finds out, how fast this machine is. Used from one event loop."""

    def __init__(self, paths: Paths, engine: EngineSettings, command: Sequence[str] = COMMAND):
        self._path = paths.state / "calibration.json"
        self._engine = engine
        self._command = tuple(command)
        self._busy = asyncio.Lock()
        self._unkept: dict[str, Any] = {}
        """Measured while the disk took nothing."""
        self.current: Step | None = None
        """How far a measurement under way is; None while there is none."""

    def key(self) -> str:
        """Changes whenever the measured rates may."""
        settings = f"threads={self._engine.threads} target={self._engine.cpu_target or 'best'}"
        return f"{hardware.machine_key()} {settings} ft={__version__}"

    def cached(self) -> Mapping[str, Any] | None:
        """The profile of this machine as it is now, if it was measured."""
        found = {**self._read(), **self._unkept}.get(self.key())
        return found if _is_profile(found) else None

    async def ensure(self, ftw: Path | None) -> AsyncGenerator[Step, None]:
        """Measure if that was never done on this machine; failures are logged, not raised."""
        async with self._busy:
            if await asyncio.to_thread(self.cached) is not None:
                return
            try:
                async with contextlib.aclosing(self._measure(ftw)) as steps:
                    async for step in steps:
                        yield step
            except FtmanError as error:
                log.warning("calibration failed and will be tried again: %s", error.message)
            except OSError as error:  # a full disk; the model can be loaded all the same
                log.warning("calibration cannot be made or kept: %s", error)

    async def run(self, ftw: Path | None = None) -> AsyncGenerator[Step, None]:
        """Measure now, whatever is cached, and keep the result.   Raises: FtmanError."""
        async with self._busy, contextlib.aclosing(self._measure(ftw)) as steps:
            async for step in steps:
                yield step

    async def _measure(self, ftw: Path | None) -> AsyncGenerator[Step, None]:
        arguments = [*self._command, "--threads", str(self._engine.threads)]
        if self._engine.cpu_target:
            arguments += ["--cpu-target", self._engine.cpu_target]
        if ftw is not None:
            arguments += ["--ftw", str(ftw)]
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=engine_environment(),
            start_new_session=True,
        )
        self.current = Step("start", 0, 0)
        try:
            async with contextlib.aclosing(_steps(process)) as steps:
                async for step in steps:
                    self.current = step
                    if step.profile is not None:
                        await asyncio.to_thread(self._keep, step.profile)
                    yield step
            await end_child(process, _STOP_S)
        finally:
            self.current = None
            await end_child(process)

    def _keep(self, profile: Mapping[str, Any]) -> None:
        self._unkept = {self.key(): dict(profile)}
        profiles = {**self._read(), **self._unkept}
        files.write_atomic(self._path, json.dumps(profiles, indent=1, sort_keys=True).encode())
        self._unkept = {}

    def _read(self) -> dict[str, Any]:
        try:
            value = json.loads(files.read_bytes(self._path, limit=CACHE_LIMIT_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read and is measured anew: %s", self._path, error)
            return {}
        return value if isinstance(value, dict) else {}


async def _steps(process: asyncio.subprocess.Process) -> AsyncGenerator[Step, None]:
    stdout = process.stdout
    assert stdout is not None
    while True:
        try:
            line = await result_within(stdout.readline(), TIMEOUT_S)
        except asyncio.TimeoutError:
            raise FtmanError(f"calibration gave no sign of life for {TIMEOUT_S:.0f} s") from None
        if not line:
            status = await process.wait()
            raise FtmanError(
                f"calibration ended with status {status} before its result",
                hint="Run it by hand to see why: python -m ftengine.calibrate",
            )
        step = _parse(line)
        if step is not None:
            yield step
            if step.profile is not None:
                return


def _parse(line: bytes) -> Step | None:
    try:
        value = json.loads(line)
        if "error" in value:
            raise FtmanError(str(value["error"]["message"]), hint=str(value["error"]["hint"]))
        if "profile" in value:
            return Step("done", 1, 1, dict(value["profile"]))
        progress = value["progress"]
        return Step(str(progress["phase"]), int(progress["completed"]), int(progress["total"]))
    except (ValueError, KeyError, TypeError):
        log.warning("calibration said something unknown: %r", line[:200])
        return None


def _is_profile(value: object) -> bool:
    """Whether it holds what is read of a profile; a file that was damaged or edited may not."""
    if not isinstance(value, Mapping):
        return False
    rates = value.get("expert_bytes_per_s")
    if not isinstance(rates, Mapping) or not {"threads", "target"} <= value.keys():
        return False
    numbers = [value.get("read_bytes_per_s"), value.get("disk_bytes_per_s", 0), *rates.values()]
    return all(isinstance(item, int | float) and math.isfinite(item) for item in numbers)

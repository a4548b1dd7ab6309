"""Whether an engine's memory on GPUs comes back when it has ended: read before, during and after.

Free bytes are the driver's word, asked in a short process of its own (gpu_probe.py), so that a
driver that hangs or stays in memory is nobody's trouble here. Nothing is asked for engines on the
CPU.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ftman.clock import Clock
from ftman.waits import end_child, result_within

log = logging.getLogger(__name__)

PROBE_LIMIT_S = 5.0
RETURN_LIMIT_S = 10.0
_POLL_S = 0.2
_ARGUMENTS = ("-m", "ftman.supervisor.gpu_probe")
_SMALL_BYTES = 64 << 20
"""Less than this is not followed: other programs' windows take as much."""
_ENOUGH = 0.8
"""Share of what the engine took that must be free again; others may take some meanwhile."""
ON_CPU = ("cpu", "emulated")
_SIGNS = ("proc/driver/nvidia/version", "dev/dxg", "dev/kfd")
"""Where Linux shows that a GPU's driver is loaded: NVIDIA's, Windows' under WSL, AMD's."""

Probe = Callable[[], Awaitable[int | None]]
"""Free bytes of all GPUs together; None = there is none, or nobody can say."""


def driver_seen(root: Path = Path("/")) -> bool:
    """Whether it is worth asking: no process is started where no driver is loaded."""
    return sys.platform != "linux" or any((root / sign).exists() for sign in _SIGNS)


async def free_bytes() -> int | None:
    """What gpu_probe says; None where it finds no GPU, fails, or takes too long."""
    if not driver_seen():
        return None
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *_ARGUMENTS,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        log.warning("what is free on the GPU cannot be asked: %s", error)
        return None
    try:
        answer, _ = await result_within(child.communicate(), PROBE_LIMIT_S)
    except asyncio.TimeoutError:
        log.warning("the GPU's driver did not say within %g s what is free", PROBE_LIMIT_S)
        return None
    finally:
        await end_child(child)
    text = answer.decode("ascii", "replace").strip()
    return int(text) if child.returncode == 0 and text.isdigit() else None


class DeviceMemoryWatch:
    """One engine's memory on GPUs, from before its load to after its end."""

    def __init__(self, clock: Clock, device: str, probe: Probe = free_bytes) -> None:
        self._clock = clock
        self._asks = device not in ON_CPU
        self._probe = probe
        self._before: int | None = None
        self._taken = 0
        self._ready: int | None = None

    async def before_load(self) -> None:
        """Before the engine's process exists."""
        self._before = await self._ask()
        self._asks = self._before is not None

    async def loaded(self) -> None:
        """It answers as ready: what it took is known now."""
        self._ready = await self._ask()
        if self._before is not None and self._ready is not None:
            self._taken = self._before - self._ready

    async def returned(self, name: str) -> str:
        """Its process is gone: wait a bounded time for the memory. Returns what to say, or ""."""
        if self._ready is None or self._taken < _SMALL_BYTES:
            return ""
        wanted = self._ready + int(_ENOUGH * self._taken)
        limit_s = self._clock.monotonic() + RETURN_LIMIT_S
        while True:
            free = await self._ask()
            if free is None or free >= wanted:
                return ""
            if self._clock.monotonic() >= limit_s:
                return _missing(name, self._taken, free - self._ready)
            await self._clock.sleep(_POLL_S)

    async def _ask(self) -> int | None:
        return await self._probe() if self._asks else None


def _missing(name: str, taken: int, back: int) -> str:
    return (
        f"of {taken / 1e9:.1f} GB of GPU memory that the engine of {name} held, "
        f"{max(back, 0) / 1e9:.1f} GB came back within {RETURN_LIMIT_S:g} s of its end; another "
        f"program took it, or the driver keeps it: nvidia-smi (or rocm-smi) shows by whom"
    )

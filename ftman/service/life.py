"""Is everything alive? What the scheduler and the engines last did, and a probe that makes a token.

When an engine is given up is decided in supervisor/watch.py; here it is only told.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass

from ftman.clock import Clock
from ftman.errors import EngineDiedError, FtmanError
from ftman.supervisor.client import EngineClient, FinishEvent, GenerateRequest, TokenEvent
from ftman.supervisor.supervisor import EngineLife, Supervisor
from ftman.waits import wait_within

SCHEDULER_LIMIT_S = 1.0
PROBE_LIMIT_S = 20.0
_PROMPT = (0,)
"""Every vocabulary has a first token, and what it means does not matter."""


@dataclass(frozen=True)
class Life:
    """scheduler_s: seconds it took to make the scheduler turn once; None = it stands still."""

    scheduler_s: float | None
    engines: tuple[EngineLife, ...]

    @property
    def trouble(self) -> str:
        """What stands still, in words; "" when nothing does."""
        if self.scheduler_s is None:
            return f"the scheduler did not turn within {SCHEDULER_LIMIT_S:g} s"
        stalled = [item for item in self.engines if item.stalls]
        return "; ".join(
            f"the engine of {item.name} made no progress for {item.stuck_s:.0f} s"
            for item in stalled
        )


@dataclass(frozen=True)
class Probed:
    """One engine that was asked for one token. error "": it made it, in `seconds`."""

    name: str
    seconds: float
    error: str = ""


async def life_of(supervisor: Supervisor, clock: Clock) -> Life:
    """Make the scheduler turn, and read what is known of the engines."""
    asked_s = clock.monotonic()
    turned = await supervisor.moves(SCHEDULER_LIMIT_S)
    spent_s = clock.monotonic() - asked_s
    return Life(spent_s if turned else None, tuple(supervisor.lives()))


async def probe_engines(supervisor: Supervisor, clock: Clock) -> list[Probed]:
    """One token of every ready engine, all at once, without a lease."""
    ready = [item for item in supervisor.lives() if item.state == "ready"]
    asked = []
    for item in ready:
        client = supervisor.client(item.key)
        if client is not None:
            asked.append(_probe(item.name, client, clock))
    return list(await asyncio.gather(*asked))


async def _probe(name: str, client: EngineClient, clock: Clock) -> Probed:
    asked_s = clock.monotonic()
    error = ""
    task = asyncio.ensure_future(_one_token(client))
    try:
        if await wait_within(_quietly(task), PROBE_LIMIT_S, clock):
            task.result()
        else:
            error = f"no token within {PROBE_LIMIT_S:g} s"
    except FtmanError as raised:
        # One that was unloaded meanwhile is not ill.
        stopped = isinstance(raised, EngineDiedError) and raised.code == "engine_stopped"
        error = "" if stopped else raised.message
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return Probed(name, clock.monotonic() - asked_s, error)


async def _quietly(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


async def _one_token(client: EngineClient) -> None:
    request = GenerateRequest(f"probe-{secrets.token_hex(4)}", _PROMPT, max_tokens=1)
    heard = False
    events = client.generate(request)
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        async for event in events:
            heard = heard or isinstance(event, TokenEvent | FinishEvent)
    if not heard:
        raise EngineDiedError("the engine answered without a token", code="engine_protocol")

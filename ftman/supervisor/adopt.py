"""Engines of an earlier manager: prove who they are, keep the healthy ones, end the rest.

Nothing is signalled before pid, start time and argv all match the record. A pid alone proves
nothing: it may have been given to another process since.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass

from ftman.clock import Clock
from ftman.config import Paths
from ftman.errors import EngineDiedError, FtmanError
from ftman.supervisor.child import Child
from ftman.supervisor.client import EngineClient, EngineInfo, check_model
from ftman.supervisor.identity import Identity, find_by_argv, identity_of
from ftman.supervisor.rundir import EngineRecord, read_records, sweep_run_folders
from ftman.supervisor.watch import Timings
from ftman.waits import wait_within

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A healthy engine that can be taken over."""

    record: EngineRecord
    child: Child
    info: EngineInfo


async def recover(paths: Paths, clock: Clock, timings: Timings, *, adopt: bool) -> list[Found]:
    """Look at every record; returns the engines to take over, at most one per key.

    All others are ended and what they left on disk is removed.
    """
    recovery = _Recovery(paths, clock, timings, adopt)
    examined = await asyncio.gather(*map(recovery.examine, read_records(paths)))
    found: dict[str, Found] = {}
    for item in examined:
        if item is None:
            continue
        if item.record.spec.key in found:
            await recovery.end(item.record, item.child)
        else:
            found[item.record.spec.key] = item
    sweep_run_folders(paths, {item.record.run.run_id for item in found.values()})
    return list(found.values())


def prove(record: EngineRecord) -> Identity | None:
    """The live process that `record` speaks of, or None if there is no such process any more."""
    if record.pid == 0 or not record.start:
        return find_by_argv(record.argv)
    identity = identity_of(record.pid)
    if identity is None or identity.start != record.start:
        return None
    return identity if _same_argv(identity.argv, record.argv) else None


def _same_argv(seen: tuple[str, ...], written: tuple[str, ...]) -> bool:
    if sys.platform != "linux":  # ps prints words, whatever the arguments were
        written = tuple(" ".join(written).split())
    return seen == written


@dataclass(frozen=True)
class _Recovery:
    paths: Paths
    clock: Clock
    timings: Timings
    adopt: bool

    async def examine(self, record: EngineRecord) -> Found | None:
        identity = prove(record)
        child = Child.attach(identity) if identity is not None else None
        if child is None:
            log.info("engine of %s from an earlier manager is gone", record.spec.name)
            record.remove(self.paths)
            return None
        info = await self._probe(record) if self.adopt else None
        if info is None:
            await self.end(record, child)
            return None
        return Found(record, child, info)

    async def _probe(self, record: EngineRecord) -> EngineInfo | None:
        if not record.address or not record.run.token:
            return None

        async def no_cause() -> FtmanError | None:
            return None

        client = EngineClient(
            record.address,
            record.run.token,
            name=record.spec.name,
            cause=no_cause,
            condemn=lambda _: None,
        )
        try:
            health = await client.health(self.timings.orphan_probe_s)
            if health.state != "ready":
                return None
            info = await client.info(self.timings.orphan_probe_s)
            check_model(info, record.spec.key, record.spec.name)
            return info
        except EngineDiedError as error:
            log.info("engine of %s is not taken over: %s", record.spec.name, error.message)
            return None
        finally:
            await client.aclose()

    async def end(self, record: EngineRecord, child: Child) -> None:
        log.info("ending engine %s of %s from an earlier manager", child.pid, record.spec.name)
        child.terminate()
        await wait_within(child.exited.wait(), self.timings.orphan_probe_s, self.clock)
        child.kill()
        await wait_within(child.exited.wait(), self.timings.drain_s, self.clock)
        child.close()
        record.remove(self.paths)

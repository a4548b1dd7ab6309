"""Reading installed models whole, naming what is damaged, and mending it: `ft verify`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Damage, Model
from ftman.errors import FtmanError
from ftman.pull.jobs import JobManager
from ftman.pull.progress import Progress
from ftman.pull.threads import in_thread

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Verdict:
    """What was found in one model. left: damage that is still there; done: what was done."""

    name: str
    damage: tuple[Damage, ...] = ()
    left: tuple[Damage, ...] = ()
    done: str = ""


class Verifier:
    """Looks at models one after another; weights that several names share are read once."""

    def __init__(self, catalog: Catalog, jobs: JobManager):
        self._catalog = catalog
        self._jobs = jobs

    async def run(
        self, models: Sequence[Model], *, repair: bool
    ) -> AsyncGenerator[Progress | Verdict, None]:
        """Verify, and repair where asked to; one Verdict for each model.   Raises: FtmanError."""
        for model in models:
            damage: list[Damage] = []
            async with contextlib.aclosing(self._read(model, damage)) as reading:
                async for progress in reading:
                    yield progress
            verdict = Verdict(model.name.short, tuple(damage), tuple(damage))
            if damage and repair:
                async for item in self._repaired(model, verdict):
                    yield item
                continue
            yield verdict

    async def _read(self, model: Model, found: list[Damage]) -> AsyncGenerator[Progress, None]:
        """Read every byte in a thread; `found` gets what is damaged."""
        counted = [0]

        def on_bytes(count: int) -> None:
            counted[0] += count

        status, total = f"verifying {model.name.short}", max(model.size_bytes, 1)
        task = asyncio.ensure_future(in_thread(self._catalog.verify, model, on_bytes))
        try:
            while not task.done():
                yield Progress(status, total=total, completed=min(counted[0], total))
                await asyncio.wait({task}, timeout=LOOK_EVERY_S)
            found += task.result()
        finally:
            # A thread cannot be stopped: whoever leaves early waits for the file it is at.
            await asyncio.gather(task, return_exceptions=True)
        yield Progress(status, total=total, completed=total)

    async def _repaired(
        self, model: Model, before: Verdict
    ) -> AsyncGenerator[Progress | Verdict, None]:
        left, done = before.damage, ""
        try:
            async for item in self._jobs.repair(model, before.damage):
                if isinstance(item, Progress):
                    yield item
                else:
                    left, done = item.left, f"{item.bytes} bytes made anew in place"
        except FtmanError as error:
            log.warning("%s cannot be repaired in place: %s", model.name.short, error.message)
            done = f"not in place: {error.message}"
        if left:
            try:
                async for progress in self._jobs.pull(model.name.full):
                    yield progress
                done = "fetched and converted anew"
            except FtmanError as error:
                done = f"{done}; not by a new pull: {error.message}".lstrip("; ")
            now: list[Damage] = []
            async for progress in self._read(self._catalog.find(model.name.full), now):
                yield progress
            left = tuple(now)
        yield Verdict(before.name, before.damage, left, done)

"""Pull jobs: shared by all who ask for the same model, cancelled when the last one leaves.

What a job does is in pull.py; this is who sees it, how long it lives and what is remembered of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ftman
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Damage, Model, ModelChanges
from ftman.clock import SYSTEM, Clock
from ftman.config import Config
from ftman.convert.job import COMMAND
from ftman.convert.messages import ConvertPlan
from ftman.convert.plan import built_families
from ftman.errors import ConflictError, FtmanError, NotFoundError, failure_of
from ftman.names import ModelName
from ftman.pull.cost import PullCost, cost_of
from ftman.pull.download import Downloader
from ftman.pull.folder import files_as_source
from ftman.pull.index import Index
from ftman.pull.job_store import JobStore, JobView, PullWish
from ftman.pull.partials import Partial, drop_partials, list_partials
from ftman.pull.progress import Emit, Progress
from ftman.pull.pull import PullRun, PullTools
from ftman.pull.pypi import PIP
from ftman.pull.repair import Mended, Repair
from ftman.pull.resolve import Resolved, Resolver, Wanted
from ftman.pull.source import LocalSource
from ftman.pull.span import DownloadSettings, Health, Tools
from ftman.pull.supply import SupplySettings
from ftman.pull.transport import Timeouts, Transport

log = logging.getLogger(__name__)

PARTIAL_AGE_S = 7 * 24 * 3600.0
"""What a pull that ended left on disk, and what is remembered of it, is kept so long."""


@dataclass(frozen=True)
class PullOptions:
    """What tests and settings may change. leave_s: how long a job outlives its last viewer."""

    download: DownloadSettings = field(default_factory=DownloadSettings)
    supply: SupplySettings = field(default_factory=SupplySettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    converter: Sequence[str] = COMMAND
    pip: Sequence[str] = PIP
    hub_endpoint: str | None = None
    leave_s: float = 5.0


class _Viewer:
    """One listener: keeps only the newest of each bar until it is read."""

    def __init__(self, past: Mapping[tuple[str, str], Progress]):
        self._waiting = dict(past)
        self._wake = asyncio.Event()
        self._wake.set()
        self.ended = False

    def put(self, progress: Progress) -> None:
        key = (progress.status, progress.digest)
        self._waiting.pop(key, None)
        self._waiting[key] = progress
        self._wake.set()

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    async def take(self) -> list[Progress]:
        """What is new; empty once the job has ended and all was read."""
        await self._wake.wait()
        found, self._waiting = list(self._waiting.values()), {}
        if not self.ended:
            self._wake.clear()
        return found


class _Job:
    """One running job. Its task is the only writer of its state.

    doing: "pulling", "creating", ... wish: of a pull that can be taken up. recorded: it is
    remembered when it has ended. pausing: it is being ended to go on later. detached: nobody need
    watch it.
    """

    def __init__(self, view: JobView, doing: str, wish: PullWish | None):
        self.view = view
        self.doing = doing
        self.wish = wish
        self.recorded = False
        self.viewers: set[_Viewer] = set()
        self.latest: dict[tuple[str, str], Progress] = {}
        self.claims: set[str] = set()
        self.error: FtmanError | None = None
        self.pausing = False
        self.detached = False
        self.task: asyncio.Task[None]
        self.leaving: asyncio.Task[None] | None = None

    def emit(self, progress: Progress) -> None:
        self.latest[progress.status, progress.digest] = progress
        self.view = replace(
            self.view,
            phase=progress.phase or self.view.phase,
            completed=progress.completed,
            total=progress.total,
        )
        for viewer in self.viewers:
            viewer.put(progress)

    def claim(self, hex_digest: str) -> None:
        self.claims |= {hex_digest, f"sha256:{hex_digest}"}


Work = Callable[[_Job], Coroutine[Any, Any, Model]]
Make = Callable[[PullTools, Emit, Callable[[str], None]], Coroutine[Any, Any, Model]]


class JobManager:
    """All pulls of one manager. Methods belong to its event loop."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        index: Index,
        clock: Clock = SYSTEM,
        options: PullOptions | None = None,
    ):
        self._config = config
        self._catalog = catalog
        self._index = index
        self._clock = clock
        self._options = options or PullOptions()
        self._jobs: dict[str, _Job] = {}
        self._built: tuple[str, ...] | None = None
        self._plans: dict[str, ConvertPlan] = {}
        self._store = JobStore(config.paths.state)
        self._store.interrupt_running()
        # Those of the last week wait for a pull that goes on.
        drop_partials(config.paths.partial, clock.wall() - PARTIAL_AGE_S)
        self._store.forget(clock.wall() - PARTIAL_AGE_S)

    async def pull(
        self,
        name: str,
        *,
        insecure: bool = False,
        local: LocalSource | None = None,
        keep_source: bool = False,
    ) -> AsyncIterator[Progress]:
        """Pull a model and yield its progress, last "success". Joins a pull already under way.

        Raises: FtmanError of every kind. When the last viewer leaves, the job is cancelled a few
        seconds later; what was fetched stays.
        """
        job = self._start_pull(name, insecure=insecure, local=local, keep_source=keep_source)
        async for progress in self._watch(job):
            yield progress

    def _start_pull(
        self, name: str, *, insecure: bool, local: LocalSource | None, keep_source: bool
    ) -> _Job:
        """The job of a pull, begun if it is not under way.   Raises: UsageError."""
        wanted = Wanted(name, insecure, local)
        key = self._resolver(self._downloader()).key(wanted)
        if local is not None:
            key = f"{key} from {local.path}"

        async def work(job: _Job) -> Model:
            job.emit(Progress("pulling manifest", phase="resolve"))
            built = await self._families()
            downloader = self._downloader()
            try:
                resolver = self._resolver(downloader)
                resolved = await resolver.resolve(wanted, built)
                self._record(job)
                run = PullRun(self._tools(downloader, keep_source), job.emit, job.claim)
                return await run.install(resolved)
            finally:
                await downloader.tools.transport.close()

        wish = PullWish(name, insecure, keep_source) if local is None else None
        return self._join(key, name, "pulling", wish, work)

    async def cost(
        self, name: str, *, insecure: bool = False, any_family: bool = False
    ) -> PullCost | None:
        """What pulling a model would cost; None while that pull is already under way.

        any_family: of models that cannot be pulled yet, too.   Raises: FtmanError as a pull would.
        """
        wanted = Wanted(name, insecure)
        downloader = self._downloader()
        resolver = self._resolver(downloader)
        if resolver.key(wanted) in self._jobs:
            return None
        try:
            built = () if any_family else await self._families()
            resolved = await resolver.resolve(wanted, built)
            tools = self._tools(downloader, False)
            return await cost_of(tools, resolved, any_family=any_family)
        finally:
            await downloader.tools.transport.close()

    async def install_files(
        self, name: ModelName, named: Mapping[str, Path], overrides: ModelChanges
    ) -> AsyncIterator[Progress]:
        """Install from files on this machine (`ft create`): a GGUF or a safetensors checkpoint.

        named: file name -> where its bytes lie.   Raises: UsageError, FtmanError.
        """
        source = files_as_source(dict(named), f"create:{name.short}")

        async def make(tools: PullTools, emit: Emit, claim: Callable[[str], None]) -> Model:
            for path in named.values():
                claim(path.name.removeprefix("sha256-"))
            return await PullRun(tools, emit, claim).install(Resolved(name, source), overrides)

        async for progress in self.run_job("creating", "/".join(name.key), name.short, make):
            yield progress

    async def run_job(
        self, doing: str, subject: str, label: str, make: Make
    ) -> AsyncIterator[Progress]:
        """Do other work on a model in a job of its own; ends with "success".

        doing: "creating", "importing", ... subject: what of no two such jobs may run at once.
        Raises: ConflictError while the same is under way, FtmanError of every kind.
        """
        key = f"{doing} {subject}"
        if key in self._jobs:
            raise ConflictError(f"{doing} {label} is under way already", hint="Wait for it.")

        async def work(job: _Job) -> Model:
            self._record(job)
            downloader = self._downloader()
            try:
                return await make(self._tools(downloader, False), job.emit, job.claim)
            finally:
                await downloader.tools.transport.close()

        async for progress in self._watch(self._join(key, label, doing, None, work)):
            yield progress

    async def repair(
        self, model: Model, damage: Sequence[Damage]
    ) -> AsyncIterator[Progress | Mended]:
        """Mend an installed model in place; the last item says what came of it.

        Raises: ConflictError while the same is under way, FtmanError of every kind.
        """
        found: list[Mended] = []

        async def make(tools: PullTools, emit: Emit, claim: Callable[[str], None]) -> Model:
            claim(model.ftw_id)
            resolver = self._resolver(tools.downloader)
            repair = Repair(tools, resolver, self._options.hub_endpoint, emit)
            found.append(await repair.run(model, damage))
            return model

        async for progress in self.run_job("repairing", model.ftw_id, model.name.short, make):
            yield progress
        yield found[0]

    def jobs(self) -> list[JobView]:
        """Running jobs, then what is remembered of earlier ones."""
        running = [job.view for job in self._jobs.values()]
        known = {view.id for view in running}
        return [*running, *(row for row in self._store.rows() if row.id not in known)]

    async def cancel(self, job_id: str) -> None:
        """End a running job and wait until it has.   Raises: NotFoundError."""
        await _end(self._running(job_id))

    async def pause(self, job_id: str) -> None:
        """End a running pull so that `resume` takes it up, also after a restart.

        Raises: NotFoundError; ConflictError for a job that cannot be taken up.
        """
        job = self._running(job_id)
        if job.wish is None:
            raise ConflictError(
                f"{job.doing} {job.view.name} cannot stop here and go on later",
                hint="Let it end, or: ft jobs cancel " + job_id,
            )
        job.pausing = True
        self._record(job)
        await _end(job)

    def resume(self, job_id: str) -> JobView:
        """Take up a pull that was paused, cut off or failed; it runs on without a viewer.

        Raises: NotFoundError, UsageError.
        """
        if any(job.view.id == job_id for job in self._jobs.values()):
            raise ConflictError(f"job {job_id} is running already", hint="See: ft jobs")
        wish = self._store.wish(job_id)
        if wish is None:
            raise NotFoundError(f"no pull {job_id!r} to go on with", hint="See: ft jobs --all")
        job = self._start_pull(
            wish.name, insecure=wish.insecure, local=None, keep_source=wish.keep_source
        )
        job.detached = True
        return job.view

    def partials(self) -> list[Partial]:
        """What interrupted pulls have left on disk. For a thread."""
        return list_partials(self._config.paths.partial)

    def drop_partials(self) -> int:
        """Remove all of it that no running job works on; returns the bytes. For a thread."""
        return drop_partials(self._config.paths.partial, float("inf"))

    def _running(self, job_id: str) -> _Job:
        for job in self._jobs.values():
            if job.view.id == job_id:
                return job
        raise NotFoundError(f"no running job {job_id!r}", hint="See: ft jobs")

    async def close(self) -> None:
        """End all jobs, keep their partials, close the database."""
        await asyncio.gather(*(_end(job) for job in list(self._jobs.values())))
        self._store.close()

    def uses(self, digest_or_ftw_id: str) -> bool:
        """True if a running job needs this blob or FTW, so that it must not be removed."""
        return any(digest_or_ftw_id in job.claims for job in self._jobs.values())

    def _join(self, key: str, name: str, doing: str, wish: PullWish | None, work: Work) -> _Job:
        """The job of that key, begun if it is not under way."""
        job = self._jobs.get(key)
        if job is None:
            now = self._clock.wall()
            label = hashlib.sha256(key.encode()).hexdigest()[:12]
            view = JobView(label, name, "running", started_wall_s=now, updated_wall_s=now)
            job = self._jobs[key] = _Job(view, doing, wish)
            job.recorded = self._store.holds(label)
            job.task = asyncio.ensure_future(self._run(key, job, work))
        return job

    def _record(self, job: _Job) -> None:
        """From here on it is remembered: a pull that finds nothing to fetch is not worth it."""
        job.recorded = True
        self._store.save(job.view)
        if job.wish is not None:
            self._store.save_wish(job.view.id, job.wish)

    async def _run(self, key: str, job: _Job, work: Work) -> None:
        state = "failed"
        try:
            await work(job)
            state = "done"
        except asyncio.CancelledError:
            state = "paused" if job.pausing else "cancelled"
            job.error = _ended(job, state)
        except FtmanError as error:
            job.error = error
        except Exception as error:  # the root of a job
            told, what = failure_of(error), f"{job.doing} {job.view.name} failed"
            log.exception("%s", what)
            job.error = told or FtmanError(
                f"{what}: {type(error).__name__}: {error}", hint="The log has the details."
            )
        finally:
            del self._jobs[key]
            reason = job.error.message if job.error else ""
            now = self._clock.wall()
            job.view = replace(job.view, state=state, error=reason, updated_wall_s=now)
            if job.recorded:
                self._store.save(job.view)
                self._store.forget(now - PARTIAL_AGE_S)
            for viewer in job.viewers:
                viewer.end()

    async def _watch(self, job: _Job) -> AsyncIterator[Progress]:
        viewer = _Viewer(job.latest)
        if job.task.done():
            viewer.end()
        job.viewers.add(viewer)
        if job.leaving is not None:
            job.leaving.cancel()
            job.leaving = None
        try:
            while True:
                found = await viewer.take()
                for progress in found:
                    yield progress
                if viewer.ended and not found:
                    break
            if job.error is not None:
                raise job.error
        finally:
            job.viewers.discard(viewer)
            if not job.viewers and not job.task.done() and not job.detached:
                job.leaving = asyncio.ensure_future(self._cancel_later(job))

    async def _cancel_later(self, job: _Job) -> None:
        await self._clock.sleep(self._options.leave_s)
        if not job.viewers:
            job.task.cancel()

    async def _families(self) -> tuple[str, ...]:
        if self._built is None:
            self._built = await built_families(self._options.converter)
        return self._built

    def _resolver(self, downloader: Downloader) -> Resolver:
        home = self._config.paths.home
        return Resolver(self._index, downloader, self._options.hub_endpoint, home)

    def _downloader(self) -> Downloader:
        transport = Transport(self._options.timeouts, f"ft/{ftman.__version__}")
        settings = replace(self._options.download, reserve_bytes=self._config.reserve_bytes)
        return Downloader(Tools(transport, settings, self._clock, Health()))

    def _tools(self, downloader: Downloader, keep_source: bool) -> PullTools:
        return PullTools(
            paths=self._config.paths,
            catalog=self._catalog,
            clock=self._clock,
            downloader=downloader,
            supply=replace(self._options.supply, keep_source=keep_source),
            converter=self._options.converter,
            pip=self._options.pip,
            reserve_bytes=self._config.reserve_bytes,
            plans=self._plans,
        )


def _ended(job: _Job, state: str) -> FtmanError:
    """What who watches a job is told that was cancelled or paused."""
    name = job.view.name
    if job.doing != "pulling":
        return FtmanError(
            f"{job.doing} {name} was {state}", hint="Run the same command again.", code=state
        )
    again = f"ft jobs resume {job.view.id}" if job.pausing else f"ft pull {name}"
    return FtmanError(
        f"the pull of {name} was {state}; what was fetched is kept",
        hint=f"{again} goes on where it stopped.",
        code=state,
    )


async def _end(job: _Job) -> None:
    await asyncio.sleep(0)  # a task that is cancelled before its first step never tells its end
    job.task.cancel()
    await asyncio.wait({job.task})

"""The manager's use cases behind every dialect and the command line; no wire format here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftman import bench
from ftman.calibration import Calibration, Step
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model, Orphan
from ftman.chat.remembered import ReplyMemory
from ftman.chat.template import JinjaTemplates
from ftman.chat.types import (
    ChatEvent,
    ChatRequest,
    CompletionRequest,
    Options,
    Usage,
    Waiting,
)
from ftman.clock import SYSTEM, Clock
from ftman.config import Config
from ftman.errors import FtmanError, UsageError
from ftman.pull.index import Index, IndexEntry
from ftman.pull.job_store import JobView
from ftman.pull.jobs import JobManager
from ftman.pull.offline import import_model, read_exported
from ftman.pull.partials import Partial
from ftman.pull.progress import Progress
from ftman.service.create import Creator
from ftman.service.effective import effective_settings
from ftman.service.embed import Embedder
from ftman.service.engines import Engines
from ftman.service.experts import (
    RunningExperts,
    divide_memory,
    engine_metrics,
    running_experts,
)
from ftman.service.generate import Generator, TokenCounts
from ftman.service.life import Life, Probed, life_of, probe_engines
from ftman.service.models import Models
from ftman.service.plans import Plans
from ftman.service.push import Pusher
from ftman.service.requests import CreateRequest, EmbedInput, EmbedResult, RunningModel, Shown
from ftman.service.tokenizers import TokenizerShelf
from ftman.service.tokens import Tokens
from ftman.service.verify import Verdict, Verifier
from ftman.supervisor.client import MemoryState
from ftman.supervisor.counts import EngineCounts
from ftman.supervisor.launcher import Launcher
from ftman.supervisor.supervisor import QueuedRequest, Supervisor

log = logging.getLogger(__name__)


class Service:
    """Everything the manager can do. One per process; start before use, close at the end."""

    def __init__(
        self,
        config: Config,
        clock: Clock = SYSTEM,
        *,
        launcher: Launcher | None = None,
        index: Index | None = None,
        calibration: Calibration | None = None,
    ):
        self.config = config
        self.clock = clock
        self.started_wall_s = clock.wall()
        self.on_stop: Callable[[], None] | None = None
        self.stopping = False
        self._index = index or Index.load(config.registry, config.paths.cache)
        self.catalog = Catalog(config.paths, self._index.default_tag, clock)
        self._jobs = JobManager(config, self.catalog, self._index, clock)
        self._supervisor = Supervisor(config, clock, launcher)
        self._templates = JinjaTemplates()
        self._shelf = TokenizerShelf(self._supervisor.uses, clock)
        # A launcher from outside starts engines that have no rates worth measuring.
        self._calibration = calibration or Calibration(config.paths, config.engine)
        automatic = self._calibration if launcher is None else None
        self._engines = Engines(config, self.catalog, self._supervisor, automatic)
        memory = ReplyMemory()
        self._generator = Generator(self._engines, self._shelf, self._templates, memory, clock)
        self.tokens = Tokens(self._engines, self._shelf, self._templates, memory)
        self._embedder = Embedder(self._engines, self._shelf, self.catalog, clock)
        self._models = Models(self.catalog, self._templates)
        self._creator = Creator(self.catalog, self._jobs)
        self._pusher = Pusher(self.catalog, config.paths, clock)
        self._verifier = Verifier(self.catalog, self._jobs)
        self._plans = Plans(self.catalog, self._jobs, self._calibration.cached)
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Adopt or end engines of an earlier manager, and be ready."""
        await self._supervisor.start()
        self._sweeping = asyncio.create_task(asyncio.to_thread(self._sweep))

    async def close(self) -> None:
        """End jobs, engines and helpers; nothing of ours is left running."""
        if self._sweeping is not None:
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for part in (self._jobs, self._supervisor, self._shelf, self._templates):
            try:
                await part.close()
            except Exception:  # one part's failure may not keep the others running
                log.exception("closing %s failed", type(part).__name__)

    @property
    def prepared_pid(self) -> int:
        """The process that waits to become the next engine; 0 = none does."""
        return self._supervisor.prepared_pid

    async def moves(self, within_s: float) -> bool:
        """Whether the scheduler of engines and requests is alive, not only the process."""
        return await self._supervisor.moves(within_s)

    async def life(self) -> Life:
        """Signs of life of the scheduler and of every engine; nothing is computed."""
        return await life_of(self._supervisor, self.clock)

    async def probe(self) -> list[Probed]:
        """Have every loaded engine make one token, within a limit. Counts as no use of a model."""
        return await probe_engines(self._supervisor, self.clock)

    def ask_to_stop(self) -> None:
        """Pass a wish to end on to whoever runs this service."""
        if self.on_stop is not None:
            self.on_stop()

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Continue a conversation; ends with Finish.   Raises: FtmanError while iterating."""
        return self._generator.chat(request)

    def complete(
        self, request: CompletionRequest, template_values: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[ChatEvent, None]:
        """Continue a prompt; ends with Finish.   Raises: FtmanError while iterating."""
        return self._generator.complete(request, template_values or {})

    async def embed(self, request: EmbedInput) -> EmbedResult:
        """Vectors of texts or ids; without inputs the model is only loaded.

        Raises: FtmanError; code context_length_exceeded, not_a_number.
        """
        result = await self._embedder.embed(request)
        if request.inputs:
            name = self.catalog.find(request.model).name.short
            counts = self._generator.counts.setdefault(name, TokenCounts())
            counts.add(result.prompt_tokens, 0, 0)
        return result

    async def load(self, model: str, keep_alive_s: float | None, options: Options) -> Usage:
        """Have a model loaded; returns how long that took.   Raises: FtmanError."""
        started_s = self.clock.monotonic()
        found = self._engines.usable(model)
        settings = self._engines.settings(found, options)
        spec = self._engines.spec(found, settings.context_tokens, settings.options.num_thread)
        async with contextlib.AsyncExitStack() as stack:
            async for item in self._engines.lease(stack, spec, keep_alive_s):
                if isinstance(item, Waiting):
                    log.debug("loading %s: %s", found.name.short, item)
        seconds = self.clock.monotonic() - started_s
        return Usage(total_s=seconds, load_s=seconds)

    async def unload(self, model: str) -> None:
        """Have a model unloaded once it is idle; not being loaded is fine."""
        await self._supervisor.unload(self.catalog.find(model).ftw_id)

    def find(self, name: str) -> Model:
        """The installed model a name means.   Raises: UsageError, NotFoundError."""
        return self.catalog.find(name)

    def own_options(self, model: Model) -> Options:
        """What the model itself asks for, for dialects with other defaults."""
        return self._engines.own_options(model)

    def capabilities(self, model: Model) -> tuple[str, ...]:
        """What can be done with a model."""
        return self._models.capabilities(model)

    def context_tokens(self, model: Model) -> int:
        """The window a request without a wish of its own gets. Units: tokens."""
        return self._engines.settings(model, Options()).context_tokens

    def held_tokenizers(self) -> list[str]:
        """FTW ids whose tokenizers are in memory."""
        return self._shelf.held()

    async def models(self) -> list[Model]:
        """Installed models, newest first."""
        return await asyncio.to_thread(self.catalog.models)

    async def show(
        self, name: str, *, verbose: bool = False, parameters: Mapping[str, Any] | None = None
    ) -> Shown:
        """Everything about one model. parameters: over its own, in the printed Modelfile only.

        Raises: NotFoundError, IntegrityError.
        """
        shown = await self._models.show(name, verbose=verbose, parameters=parameters)
        try:
            window = self.context_tokens(shown.model)
        except UsageError:
            return shown  # a PARAMETER of a wrong type: using the model tells of it
        effective = effective_settings(shown.model, self.config, window)
        return replace(shown, effective=effective)

    def create(self, request: CreateRequest) -> AsyncGenerator[Progress, None]:
        """Build a model; ends with "success".   Raises: FtmanError while iterating."""
        return self._creator.create(request)

    def pull(
        self, name: str, insecure: bool = False, *, keep_source: bool = False
    ) -> AsyncIterator[Progress]:
        """Fetch and install a model; ends with "success". keep_source: so that it can be pushed.

        Raises: FtmanError while iterating.
        """
        return self._jobs.pull(name, insecure=insecure, keep_source=keep_source)

    async def take_in(self, folder: Path, name: str = "") -> AsyncIterator[Progress]:
        """Install a model that `ft export` wrote; ends with "success". name "" = its own.

        Raises: FtmanError, NotFoundError, IntegrityError while iterating.
        """
        exported = await asyncio.to_thread(read_exported, folder, name)
        async for progress in import_model(self._jobs, exported):
            yield progress

    def push(self, name: str, insecure: bool = False) -> AsyncGenerator[Progress, None]:
        """Send a model to the registry its name says.   Raises: FtmanError while iterating."""
        return self._pusher.push(name, insecure)

    async def copy(self, source: str, destination: str) -> None:
        """Give an installed model a second name.   Raises: UsageError, NotFoundError."""
        await asyncio.to_thread(self.catalog.copy, source, destination)

    async def delete(self, name: str) -> None:
        """Remove a name and what no other name needs.   Raises: UsageError, NotFoundError."""
        await asyncio.to_thread(self.catalog.delete, name, self._in_use)

    def running(self) -> list[RunningModel]:
        """Engines, the one that expires last first."""
        found = []
        for engine in self._supervisor.running():
            found.append(
                RunningModel(
                    name=engine.spec.name,
                    model=self._installed(engine.spec.name),
                    state=engine.state,
                    size_bytes=engine.size_bytes,
                    size_vram_bytes=engine.size_vram_bytes,
                    context_tokens=engine.spec.context_tokens,
                    expires_wall_s=engine.expires_wall_s,
                    in_use=engine.in_use,
                    loaded_bytes=engine.loaded_bytes,
                    total_bytes=engine.total_bytes,
                    kv_format=engine.kv_format,
                )
            )
        forever = float("inf")
        return sorted(
            found, key=lambda r: -(forever if r.expires_wall_s is None else r.expires_wall_s)
        )

    def queue(self) -> list[QueuedRequest]:
        """Requests that wait, in the order of their turns, each with its reason."""
        return self._supervisor.queue()

    def token_counts(self) -> Mapping[str, TokenCounts]:
        """Tokens of answers that ended, by model name."""
        return self._generator.counts

    def engine_counts(self) -> EngineCounts:
        """Loads, unloads and deaths of engines since the start."""
        return self._supervisor.counts

    async def engine_metrics(self) -> dict[str, str]:
        """What every ready engine tells of itself, as Prometheus text by model name."""
        return await engine_metrics(self._supervisor)

    async def experts(self) -> list[RunningExperts]:
        """Routed experts of every ready engine."""
        return await running_experts(self._supervisor)

    async def memory(
        self, name: str, expert_slots: int | None = None, kv_bytes: int | None = None
    ) -> MemoryState:
        """Divide a loaded model's memory anew.

        Raises: NotFoundError, UsageError, CannotFitError.
        """
        model = self.catalog.find(name)
        return await divide_memory(
            self._supervisor, model.ftw_id, model.name.short, expert_slots, kv_bytes
        )

    def search(self, text: str) -> list[IndexEntry]:
        """Models of the index that match a text."""
        return self._index.search(text)

    def jobs(self) -> list[JobView]:
        """Pull jobs, running and past."""
        return self._jobs.jobs()

    async def cancel_job(self, job_id: str) -> None:
        """End a running job; what it fetched is kept.   Raises: NotFoundError."""
        await self._jobs.cancel(job_id)

    async def pause_job(self, job_id: str) -> None:
        """Stop a running pull, to go on later.   Raises: NotFoundError, ConflictError."""
        await self._jobs.pause(job_id)

    def resume_job(self, job_id: str) -> JobView:
        """Go on with a pull, without a viewer.   Raises: NotFoundError, ConflictError."""
        return self._jobs.resume(job_id)

    def calibrate(self, name: str) -> AsyncGenerator[Step, None]:
        """Measure this machine now, and the disk of `name` where one is given.

        Raises: NotFoundError at once; FtmanError while iterating.
        """
        return self._calibration.run(self.catalog.find(name).ftw_path if name else None)

    async def bench(self, name: str) -> Mapping[str, Any]:
        """Time per operator of a model on the CPU.   Raises: NotFoundError, FtmanError."""
        return await bench.profile(self.catalog.find(name).ftw_path, self.config.engine)

    def measuring(self) -> Step | None:
        """How far the measurement of this machine is, while one is under way."""
        return self._calibration.current

    def profile(self) -> Mapping[str, Any] | None:
        """This machine's measured rates, if there are any."""
        return self._calibration.cached()

    async def fit(self, name: str, device: str, context: int | None) -> Mapping[str, Any]:
        """The engine's forecast for any model, installed or not; device "" is this machine.

        Raises: NotFoundError, UsageError, FtmanError.
        """
        return await self._plans.fit(name, device, context)

    def verify(
        self, name: str, *, repair: bool = False
    ) -> AsyncGenerator[Progress | Verdict, None]:
        """Read a model whole ("" = all of them), name what is damaged, mend it where asked to.

        Raises: NotFoundError at once; FtmanError while iterating.
        """
        models = [self.catalog.find(name)] if name else self.catalog.models()
        return self._verifier.run(models, repair=repair)

    async def pull_plan(self, name: str, *, insecure: bool = False) -> Mapping[str, Any]:
        """What pulling a model would cost, and do on this machine; {} while it is being pulled.

        Raises: FtmanError as the pull would.
        """
        return await self._plans.pull_plan(name, insecure=insecure)

    def _sweep(self) -> None:
        freed = self.catalog.drop_unfinished(self.started_wall_s) + self.collect_garbage()
        if freed:
            log.info("removed %d bytes that no model needs", freed)

    def collect_garbage(self) -> int:
        """Remove what no model, engine or job needs; returns the bytes freed. For a thread."""
        return self.catalog.sweep(self._used_names())

    def drop_partials(self) -> int:
        """Remove what interrupted pulls have left; returns the bytes freed. For a thread."""
        return self._jobs.drop_partials()

    def garbage(self) -> tuple[list[Orphan], list[Partial]]:
        """What no model names, with what a clean-up does about it, and partial downloads."""
        return self.catalog.orphans(self._used_names()), self._jobs.partials()

    def _used_names(self) -> list[str]:
        paths = self.config.paths
        names = [path.name for folder in (paths.ftw, paths.blobs) for path in _entries(folder)]
        found = (name.replace("sha256-", "sha256:") for name in names)
        return [name for name in found if self._in_use(name)]

    def _installed(self, name: str) -> Model | None:
        try:
            return self.catalog.find(name)
        except FtmanError:
            return None

    def _in_use(self, digest_or_ftw_id: str) -> bool:
        bare = digest_or_ftw_id.removeprefix("sha256:")
        return self._supervisor.uses(bare) or self._jobs.uses(digest_or_ftw_id)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []

"""Which engine a request needs, and getting hold of it: settings, EngineSpec, lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from ftengine.protocol import CHECKSUM_WRONG
from ftman.calibration import Calibration, Step
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model
from ftman.chat.types import Options, Waiting
from ftman.config import MAX_THREADS, Config, EngineSettings
from ftman.errors import EngineDiedError, IntegrityError, UsageError
from ftman.last_read import LastRead
from ftman.service.options import NATIVE, choose_context, own_options
from ftman.service.requests import Settings
from ftman.supervisor import hardware
from ftman.supervisor.policy_events import EngineSpec
from ftman.supervisor.supervisor import Lease, Supervisor
from ftman.supervisor.supervisor import Waiting as EngineWait

_KV_FACTOR = {"bfloat16": 1, "float32": 2, "bf16": 1, "f32": 2}
"""By kv_cache_type, or by compute where that decides; of what bf16 takes."""


class Engines:
    """Turns models and options into leases."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        supervisor: Supervisor,
        calibration: Calibration | None = None,
    ):
        self._config = config
        self._calibration = calibration
        self._catalog = catalog
        self._supervisor = supervisor
        self._published = LastRead()
        self._memory_bytes = hardware.memory().total_bytes

    def usable(self, name: str) -> Model:
        """The installed model of that name, fit to be loaded.

        Raises: UsageError, NotFoundError, IntegrityError naming the damaged file, or saying that
        the disk with the store is gone.
        """
        model = self._catalog.find(name)
        if not model.damaged or self._supervisor.uses(model.ftw_id):
            return model
        if self._catalog.away:
            raise IntegrityError(
                f"model {model.name.short} cannot be loaded: {self._config.paths.models} is gone",
                hint="Mount its disk again; nothing has to be restarted.",
                code="store_unavailable",
                status=503,
            )
        raise IntegrityError(
            f"model {model.name.short} is damaged: {model.damaged}",
            hint=f"Fetch what is missing: ft pull {model.name.short}",
            code="model_damaged",
            status=500,
        )

    def own_options(self, model: Model) -> Options:
        """What the model itself asks for, as long as it is loaded also without its disk."""
        return own_options(model, self._published.read_bytes)

    def settings(self, model: Model, asked: Options) -> Settings:
        """Every option of a request decided: request, then model, then defaults."""
        options = asked.over(self.own_options(model))
        context, note = choose_context(
            options.num_ctx,
            model,
            configured=self._config.engine.context_length,
            running=self._running_context(model.ftw_id),
            num_parallel=self._config.engine.num_parallel,
            memory_bytes=self._memory_bytes,
            kv_bytes_per_token=kv_bytes_per_token(model, self._config.engine),
        )
        return Settings(options.over(NATIVE), context, (note,) if note else ())

    def spec(self, model: Model, context_tokens: int, num_thread: int | None) -> EngineSpec:
        """The engine that serves `model` with this window; one with a larger window serves too.

        Raises: UsageError for more threads than an engine takes.
        """
        threads = max(0, num_thread or 0)  # below 0 is the engine's choice, as 0 is
        if threads > MAX_THREADS:
            raise UsageError(f"option num_thread must be at most {MAX_THREADS}, not {threads}")
        context_tokens = max(context_tokens, self._running_context(model.ftw_id))
        engine = self._config.engine
        parallel = max(1, engine.num_parallel)
        kv_bytes = kv_bytes_per_token(model, engine)
        # what stays on disk is not known here; the engine itself refuses what does not fit
        weights_bytes = 0 if engine.tier == "disk" else model.load_bytes
        # what an engine takes of itself is left over then, and told once it is loaded
        parked_bytes = (engine.park_bytes or 0) if engine.prefix_cache else 0
        return EngineSpec(
            key=model.ftw_id,
            name=model.name.short,
            ftw_path=model.ftw_path,
            context_tokens=context_tokens,
            num_parallel=parallel,
            device=engine.device,
            compute=engine.compute,
            threads=threads or engine.threads,
            need_bytes=weights_bytes + kv_bytes * context_tokens * parallel + parked_bytes,
        )

    def are_idle(self) -> bool:
        """Whether no engine runs or is loaded and no request waits for one."""
        return not self._supervisor.running() and not self._supervisor.queue()

    async def begun(self, key: str) -> None:
        """Return once the engine of `key`, if there is one, was told what to load."""
        await self._supervisor.begun(key)

    async def lease(
        self, stack: contextlib.AsyncExitStack, spec: EngineSpec, keep_alive_s: float | None
    ) -> AsyncGenerator[Waiting | Lease, None]:
        """Signs of life while waiting, then the lease, which `stack` gives back."""
        if self._calibration is not None and not self._supervisor.uses(spec.key):
            async with contextlib.aclosing(self._calibration.ensure(spec.ftw_path)) as steps:
                async for step in steps:
                    yield _as_step(step)
        waits: asyncio.Queue[EngineWait] = asyncio.Queue()
        lease = self._supervisor.lease(spec, keep_alive_s=keep_alive_s, on_wait=waits.put_nowait)
        entering = asyncio.ensure_future(stack.enter_async_context(lease))
        told: asyncio.Task[EngineWait] | None = None
        try:
            while not entering.done():
                told = told or asyncio.ensure_future(waits.get())
                await asyncio.wait({entering, told}, return_when=asyncio.FIRST_COMPLETED)
                if told.done():
                    yield _as_waiting(told.result())
                    told = None
            try:
                yield entering.result()
            except EngineDiedError as error:
                if error.code == "load_failed" and CHECKSUM_WRONG in error.message:
                    self._catalog.condemn(spec.key, f"bytes of its weights: {CHECKSUM_WRONG}")
                raise
        finally:
            for task in (entering, told):
                if task is not None and not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    def _running_context(self, ftw_id: str) -> int:
        for engine in self._supervisor.running():
            if engine.spec.key == ftw_id and engine.state != "stopping":
                return engine.spec.context_tokens
        return 0


def kv_bytes_per_token(model: Model, engine: EngineSettings) -> int:
    """Keys and values of one token, as these settings keep them; what cannot be q8_0 is not."""
    plain, small = model.kv_bytes_per_token, model.kv_q8_0_bytes_per_token
    kept = engine.kv_cache_type
    if kept == "q8_0" and 0 < small < plain:
        return small
    return plain * _KV_FACTOR[engine.compute if kept in ("auto", "q8_0") else kept]


def _as_step(step: Step) -> Waiting:
    return Waiting("calibrate", step.completed, step.total)


def _as_waiting(wait: EngineWait) -> Waiting:
    if wait.kind == "load":
        return Waiting("load", wait.loaded_bytes, wait.total_bytes)
    return Waiting("queue", wait.position)

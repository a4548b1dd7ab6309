"""The runner of an engine on a GPU: steps enqueued on its stream, decode steps captured.

Only indices go in, in one copy, and only candidates come out; whole rows of logits when somebody
asks for them. Layers are the ordinary ones: their kernels are launches (gpu/kernels.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.cache.kv_pool import KvPool
from ftengine.cache.policy.pages import PAGE_TOKENS, pages_for
from ftengine.cache.state_pool import StatePool
from ftengine.errors import EngineError
from ftengine.gpu.best import BestLogits
from ftengine.gpu.decode_steps import DecodeSteps, StepKey
from ftengine.gpu.graph import Watchdog
from ftengine.gpu.hand_off import HandOff
from ftengine.gpu.indices import DeviceIndices
from ftengine.gpu.kernels import GpuKernels
from ftengine.gpu.memory import PinnedBlock
from ftengine.kernels.triton.layer_calls import SPLIT_TOKENS
from ftengine.layers.context import StepContext
from ftengine.models.decoder import Decoder
from ftengine.plan.record import Watch
from ftengine.runtime.runner import Runner, RunnerLimits, StepMemory, head_rows, sampling_rows
from ftengine.sampling.partial import Logits, PartialLogits
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.reuse import Copy

_SPLIT_PAGES = SPLIT_TOKENS // PAGE_TOKENS


class SteppedStore(Protocol):
    """Routed experts on a GPU, as far as a step tells it. Meanings: experts/gpu_store.py."""

    generation: int

    @property
    def hand_off(self) -> HandOff | None: ...
    @property
    def wants_eager(self) -> bool: ...
    def can_capture(self, tokens: int) -> bool: ...
    def begin_step(self, tokens: int, decode: bool, eager: bool = False) -> None: ...
    def end_step(self) -> None: ...
    def recover(self) -> None: ...


class NoStore:
    """Where a model has no routed experts."""

    generation = 0
    hand_off: HandOff | None = None
    wants_eager = False

    def can_capture(self, tokens: int) -> bool:
        """Nothing speaks against it."""
        return True

    def begin_step(self, tokens: int, decode: bool, eager: bool = False) -> None:
        """Nothing to do."""

    def end_step(self) -> None:
        """Nothing to do."""

    def recover(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class GpuParts:
    """What was placed on the device. releases: gives it back, in this order."""

    kernels: GpuKernels
    indices: DeviceIndices
    best: BestLogits
    memory: StepMemory
    store: SteppedStore
    releases: tuple[Callable[[], None], ...]


class GpuRunner(Runner):
    """Runs steps on a device. Every step has ended when its function returns."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KvPool,
        limits: RunnerLimits,
        states: StatePool | None,
        parts: GpuParts,
    ) -> None:
        super().__init__(decoder, pool, limits, states, parts.memory)
        self._parts = parts
        self._device = parts.kernels.tools.device
        self._where = parts.memory.logits.device
        self._watchdog = Watchdog(self._device.compute)
        self._steps = DecodeSteps(self._device.compute, self._watchdog)
        self._seen = parts.store.generation
        self._rows = PinnedBlock(self._device.driver, 4 * head_rows(limits) * decoder.vocab_size)
        self._rows_at = self._rows.take(4 * head_rows(limits) * decoder.vocab_size)

    @property
    def step_described(self) -> str:
        """How decode steps are computed, in words."""
        return self._steps.described()

    def use_pool(self, pool: KvPool) -> None:
        """Steps from now on use another pool; between steps only."""
        super().use_pool(pool)
        self._steps.forget()

    def close(self) -> None:
        """Give device memory, graphs and pinned memory back; may be called twice."""
        if self._rows.closed:
            return
        self._device.synchronize()
        self._steps.forget()
        self._watchdog.close()
        self._rows.close()
        self._release(self._pool)
        for release in self._parts.releases:
            release()

    def copy(self, copies: Iterable[Copy]) -> None:
        """As Runner.copy."""
        with torch.inference_mode(), self._where:
            super().copy(copies)

    def run(self, batch: Batch) -> Logits:
        """As Runner.run, with the best candidates of each row; the rows stay on the device."""
        rows = sampling_rows(batch.work)
        if len(rows) == batch.num_tokens:
            return self._decode(batch.work)
        hidden = self._forward(batch.work, rows)
        if hidden.shape[0] == 0:
            return self._logits[:0].cpu()
        with torch.inference_mode(), self._where:
            logits = self._decoder.logits(hidden, self._logits[: hidden.shape[0]])
            self._parts.best.enqueue(logits)
        self._watchdog.finish()
        return self._partial(hidden.shape[0])

    def _decode(self, work: Items[Work]) -> PartialLogits:
        count, store = len(work), self._parts.store
        capturable = store.can_capture(count)
        may_capture = capturable and not store.wants_eager
        key = StepKey(count, self._width(work))
        self._forget_old_graphs()
        eager = self._steps.is_eager(key, may_capture)
        with self._step(count, decode=capturable, eager=eager):
            context = self._inputs.fill(work, None, key.pages)
            self._steps.run(key, lambda: self._enqueue(context), may_capture)
        return self._partial(count)

    def _enqueue(self, context: StepContext) -> bool:
        """A whole step, from indices to candidates. Whether torch computed nothing of it."""
        count = context.positions.shape[0]
        self._parts.indices.send()
        with Watch(allowed_lists=0) as watch:
            hidden = self._decoder.forward(self._inputs.token_ids, context)
            logits = self._decoder.logits(hidden, self._logits[:count])
        self._parts.best.enqueue(logits)
        return not watch.computed

    def _forward(self, work: tuple[Work, ...], wanted: list[int] | None) -> torch.Tensor:
        """Launch by launch. Shape: as Decoder.forward, on the device."""
        tokens = sum(item.num_tokens for item in work)
        with self._step(tokens, decode=False):
            context = self._inputs.fill(work, wanted)
            self._parts.kernels.most_queries = max(item.num_tokens for item in work)
            self._parts.indices.send()
            hidden = self._decoder.forward(self._inputs.token_ids, context)
            self._watchdog.finish()
        return hidden

    @contextmanager
    def _step(self, tokens: int, decode: bool, eager: bool = False) -> Iterator[None]:
        """Around a step: what the store is told, and what is done about an error."""
        store = self._parts.store
        self._watchdog.check()
        with torch.inference_mode(), self._where:
            store.begin_step(tokens, decode, eager)
            self._watchdog.hand_off = store.hand_off
            self._forget_old_graphs()
            try:
                yield
            except BaseException:
                with suppress(EngineError):  # the first error says more than what follows from it
                    self._watchdog.finish()
                    store.recover()
                raise
            store.end_step()

    def _forget_old_graphs(self) -> None:
        """Those that name buffers of experts which are others now."""
        if self._parts.store.generation != self._seen:
            self._steps.forget()
            self._seen = self._parts.store.generation

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        count = hidden.shape[0]
        if count == 0:
            return self._logits[:0].cpu()
        with torch.inference_mode(), self._where:
            self._decoder.logits(hidden, self._logits[:count])
        return self._fetch(range(count))

    def _chosen(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return hidden[rows].contiguous()

    def _on_host(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return hidden.cpu()

    def _fetch(self, rows: Items[int]) -> torch.Tensor:
        """Rows of logits of the last step. Shape: float32 [len(rows), vocab_size]."""
        vocab_size = self._logits.shape[1]
        size = 4 * vocab_size
        for place, row in enumerate(rows):
            source = self._logits[row].data_ptr()
            self._device.compute.copy_out(self._rows_at + place * size, source, size)
        self._watchdog.finish()
        buffer = (ctypes.c_float * (len(rows) * vocab_size)).from_address(self._rows_at)
        return torch.frombuffer(buffer, dtype=torch.float32).view(len(rows), vocab_size)

    def _partial(self, count: int) -> PartialLogits:
        best = self._parts.best.read(count)
        return PartialLogits(best.ids, best.values, best.log_sums, self._fetch)

    def _width(self, work: Items[Work]) -> int:
        """Pages that the table of a decode step shows: few widths, so that graphs are few."""
        need = max(pages_for(item.start + item.num_tokens) for item in work)
        splits = 1 << max(-(-need // _SPLIT_PAGES) - 1, 0).bit_length()
        return min(splits * _SPLIT_PAGES, pages_for(self._limits.context_tokens))

    def _release(self, pool: KvPool) -> None:
        for tensor in pool.tensors:
            if tensor.numel():
                self._device.release(tensor)

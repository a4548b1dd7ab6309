"""EngineConfig -> a loaded model with its pools: sizes compared first, then read.

The one place where memory is divided: weights, KV pages, work buffers.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass

import torch

from ftengine.cache.kv_pool import KvPool, page_bytes
from ftengine.cache.policy.pages import PAGE_TOKENS, PageAllocator, pages_for
from ftengine.config import EngineConfig
from ftengine.device.torch_device import available_bytes, page_aligned, usable_cpus
from ftengine.errors import CapacityError, EngineError, FormatError
from ftengine.kernels.dispatch import KernelChoice, choose_kernels
from ftengine.loader.ftw import INDEX_NAME, FtwModel
from ftengine.loader.load import FtwWeights, check_complete, kernel_bytes, read_model_config
from ftengine.models.build import Builder, BuildLimits, buffer_shape, kv_shapes
from ftengine.models.spec import ModelConfig
from ftengine.protocol import PROTOCOL_VERSION, EngineInfo
from ftengine.runtime.runner import HEAD_ROWS, Runner, RunnerLimits
from ftengine.scheduler.scheduler import Scheduler, SchedulerLimits
from ftman import __version__ as VERSION
from ftman import files

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_RESERVE_BYTES = 256 << 20
"""Left to the rest of the process and of the machine when needs are compared with what is free."""


class Progress:
    """Bytes of the model read so far; written by the engine thread, read by others."""

    def __init__(self) -> None:
        self.loaded_bytes = 0
        self.total_bytes = 0
        self.cancelled = False

    def add(self, num_bytes: int) -> None:
        """Count what was read. Raises: EngineError when the load was cancelled."""
        self.loaded_bytes += num_bytes
        if self.cancelled:
            raise EngineError("loading was cancelled", code="cancelled")


@dataclass(frozen=True)
class Assembled:
    """A loaded model and everything that serves it."""

    runner: Runner
    scheduler: Scheduler
    pages: PageAllocator
    info: EngineInfo


@dataclass(frozen=True)
class MemoryPlan:
    """Units: bytes; tokens per sequence; pages of 16 tokens."""

    context_tokens: int
    num_pages: int
    weights_bytes: int
    kv_bytes: int
    work_bytes: int

    @property
    def need_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.work_bytes


def assemble(config: EngineConfig, progress: Progress, now_wall_s: float) -> Assembled:
    """Load a model. Raises: LoadError, CapacityError with need and have."""
    choice = choose_kernels(
        kind=config.compute.kernels,
        library=config.compute.library,
        num_threads=config.compute.threads or usable_cpus(),
        cpu_target=config.compute.cpu_target,
    )
    torch.set_num_threads(choice.torch_threads)
    with FtwModel.open(config.ftw) as model, torch.inference_mode():
        progress.total_bytes = sum(item.bytes for item in model.index.tensors)
        progress.total_bytes += sum(item.bytes for item in model.index.banks)
        spec = read_model_config(model)
        check_complete(model, spec)
        plan = plan_memory(config, model, spec)
        check_memory(plan, available_bytes())
        weights = FtwWeights(model, config.compute.compute, progress.add)
        return _put_together(config, model, spec, plan, weights, choice, now_wall_s)


def plan_memory(config: EngineConfig, model: FtwModel, spec: ModelConfig) -> MemoryPlan:
    """Sizes of everything, before anything is read. Raises: CapacityError."""
    context = config.context_tokens or spec.context_tokens
    context = min(context, spec.context_tokens)
    one_page = page_bytes(kv_shapes(spec), DTYPES[config.compute.compute])
    num_pages = pages_for(context) * config.num_parallel
    if config.memory.kv_bytes:
        num_pages = config.memory.kv_bytes // one_page
        if num_pages < 1:
            raise CapacityError(
                f"--kv-bytes {config.memory.kv_bytes} is less than one page of "
                f"{PAGE_TOKENS} tokens ({one_page} bytes); give more"
            )
        context = min(context, num_pages * PAGE_TOKENS)
    shape = buffer_shape(spec)
    per_token = 2 * shape.hidden + shape.qkv + shape.attention + shape.experts + 2 * shape.slots
    inter = max(layer.feed_forward.intermediate_size for layer in spec.layers)
    per_token += (shape.slots or 1) * (2 * inter + shape.hidden)
    rows = max(HEAD_ROWS, config.num_parallel)
    return MemoryPlan(
        context_tokens=context,
        num_pages=num_pages,
        weights_bytes=kernel_bytes(model, config.compute.compute),
        kv_bytes=num_pages * one_page,
        work_bytes=4 * (config.step_tokens * per_token + rows * spec.vocab_size),
    )


def check_memory(plan: MemoryPlan, have_bytes: int | None) -> None:
    """Refuse what cannot fit. Raises: CapacityError with both numbers and what to change."""
    need = plan.need_bytes + _RESERVE_BYTES
    if have_bytes is None or need <= have_bytes:
        return
    raise CapacityError(
        f"the model needs {need / 1e9:.2f} GB ({plan.weights_bytes / 1e9:.2f} GB weights, "
        f"{plan.kv_bytes / 1e9:.2f} GB for {plan.num_pages * PAGE_TOKENS} tokens of context, "
        f"{plan.work_bytes / 1e9:.2f} GB work memory) and {have_bytes / 1e9:.2f} GB are free; "
        f"use a smaller context or fewer parallel requests, free memory, or use a smaller model"
    )


def _put_together(
    config: EngineConfig,
    model: FtwModel,
    spec: ModelConfig,
    plan: MemoryPlan,
    weights: FtwWeights,
    choice: KernelChoice,
    now_wall_s: float,
) -> Assembled:
    limits = BuildLimits(plan.context_tokens, config.step_tokens)
    decoder = Builder(spec, weights, choice.kernels, limits).decoder()
    pool = KvPool(kv_shapes(spec), plan.num_pages, DTYPES[config.compute.compute], page_aligned)
    pages = PageAllocator(plan.num_pages)
    runner = Runner(
        decoder, pool, RunnerLimits(plan.context_tokens, config.num_parallel, config.step_tokens)
    )
    scheduler = Scheduler(
        SchedulerLimits(
            plan.context_tokens, config.num_parallel, config.step_tokens, config.max_waiting
        ),
        pages,
        spec.eos_ids,
    )
    info = EngineInfo(
        protocol=PROTOCOL_VERSION,
        version=VERSION,
        ftw_id=_ftw_id(model),
        family=spec.family,
        device=config.compute.device,
        compute=config.compute.compute,
        context_tokens=plan.context_tokens,
        max_sequences=config.num_parallel,
        vocab_size=decoder.vocab_size,
        weights_bytes=weights.held_bytes,
        kv_bytes=pool.total_bytes,
        num_experts=spec.num_experts,
        kernels=choice.described,
        pid=os.getpid(),
        started_wall_s=now_wall_s,
        notes=(*spec.notes, *choice.notes, *weights.notes, *_context_notes(config, plan, spec)),
    )
    return Assembled(runner, scheduler, pages, info)


def _context_notes(config: EngineConfig, plan: MemoryPlan, spec: ModelConfig) -> tuple[str, ...]:
    if config.context_tokens > spec.context_tokens:
        return (f"context limited to {spec.context_tokens} tokens, as trained",)
    if config.context_tokens > plan.context_tokens:
        return (f"context limited to {plan.context_tokens} tokens by --kv-bytes",)
    return ()


def _ftw_id(model: FtwModel) -> str:
    path = model.path / INDEX_NAME
    try:
        return hashlib.sha256(files.read_bytes(path, limit=1 << 30)).hexdigest()
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None

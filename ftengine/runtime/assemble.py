"""EngineConfig -> a loaded model with its pools: sizes compared first, then read.

The one place where memory is divided: weights, KV pages, work buffers.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, replace

import torch

from ftengine.cache.kv_pool import KvPool, page_bytes
from ftengine.cache.policy.pages import PAGE_TOKENS, PageAllocator, pages_for
from ftengine.cache.state_pool import StatePool, slot_bytes
from ftengine.config import EngineConfig
from ftengine.device.host_memory import available_bytes
from ftengine.device.torch_device import page_aligned, usable_cpus
from ftengine.errors import CapacityError, EngineError, FormatError, LoadError
from ftengine.kernels.dispatch import KernelChoice, choose_kernels
from ftengine.loader.ftw import INDEX_NAME, FtwModel
from ftengine.loader.load import check_complete, kernel_bytes, read_model_config
from ftengine.loader.mapped import TieredWeights, mappable_bytes
from ftengine.models.build import Builder, BuildLimits, buffer_shape, kv_shapes, state_shapes
from ftengine.models.spec import ModelConfig
from ftengine.protocol import PROTOCOL_VERSION, EngineInfo
from ftengine.runtime.memory import MemoryManager
from ftengine.runtime.placement import (
    Placement,
    choose_placement,
    experts_per_token,
    slots_are_automatic,
    start_slots,
)
from ftengine.runtime.runner import HEAD_ROWS, Runner, RunnerLimits
from ftengine.scheduler.reuse import ReuseLimits
from ftengine.scheduler.scheduler import Scheduler, SchedulerLimits
from ftman import __version__ as VERSION
from ftman import files

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_RESERVE_BYTES = 256 << 20
"""Left to the rest of the process and of the machine when needs are compared with what is free."""
CHECKPOINT_BYTES = 1 << 30
"""Most that kept states of recurrent layers take by default, where LEAST_CHECKPOINTS fit in it."""
CHECKPOINT_PART = 16
"""They take one part in so many of the memory at hand, at most."""
LEAST_CHECKPOINTS = 8
MOST_CHECKPOINTS = 512
_LOCK_PART = 4
"""One part of so many of the memory that is left over may be locked; others may need the rest."""


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
    memory: MemoryManager
    info: EngineInfo


@dataclass(frozen=True)
class MemoryPlan:
    """Units: bytes; tokens per sequence; pages of 16 tokens.

    mappable_bytes: the part of the weights that could stay on disk; on_disk: it does. state_bytes:
    states of recurrent layers, for all sequences that run at once and for `num_checkpoints` more.
    """

    context_tokens: int
    num_pages: int
    weights_bytes: int
    kv_bytes: int
    work_bytes: int
    mappable_bytes: int = 0
    on_disk: bool = False
    state_bytes: int = 0
    num_checkpoints: int = 0

    @property
    def need_bytes(self) -> int:
        """All of it, without what stays on disk."""
        left = self.mappable_bytes if self.on_disk else 0
        return self.weights_bytes - left + self.kv_bytes + self.state_bytes + self.work_bytes


def assemble(config: EngineConfig, progress: Progress, now_wall_s: float) -> Assembled:
    """Load a model. Raises: LoadError, CapacityError with need and have."""
    choice = choose_kernels(
        kind=config.compute.kernels,
        library=config.compute.library,
        num_threads=config.compute.threads or usable_cpus(),
        cpu_target=config.compute.cpu_target,
        exact=config.compute.compute == "float32",
    )
    torch.set_num_threads(choice.torch_threads)
    with FtwModel.open(config.ftw, check="reading") as model, torch.inference_mode():
        progress.total_bytes = sum(item.bytes for item in model.index.tensors)
        progress.total_bytes += sum(item.bytes for item in model.index.banks)
        spec = read_model_config(model)
        check_complete(model, spec)
        have = available_bytes()
        plan = choose_tier(plan_memory(config, model, spec, have), config.memory.tier, have)
        check_memory(plan, have)
        room = lock_room(plan, have)
        weights = TieredWeights(model, config.compute.compute, progress.add, plan.on_disk, room)
        assembled = _put_together(config, model, spec, plan, weights, choice, now_wall_s)
        if not plan.on_disk:
            model.check_rest()
        return assembled


def plan_memory(
    config: EngineConfig, model: FtwModel, spec: ModelConfig, have_bytes: int | None
) -> MemoryPlan:
    """Sizes of everything, before anything is read. Raises: CapacityError."""
    context = config.context_tokens or spec.context_tokens
    context = min(context, spec.context_tokens)
    one_page = max(page_bytes(kv_shapes(spec), DTYPES[config.compute.compute]), 1)
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
    per_token += shape.branch + shape.scratch
    inter = max(layer.feed_forward.intermediate_size for layer in spec.layers)
    per_token += (shape.slots or 1) * (2 * inter + shape.hidden)
    rows = max(HEAD_ROWS, config.num_parallel)
    one_state = slot_bytes(state_shapes(spec))
    num_checkpoints = plan_checkpoints(config, one_state, have_bytes)
    return MemoryPlan(
        context_tokens=context,
        num_pages=num_pages,
        weights_bytes=kernel_bytes(model, config.compute.compute),
        kv_bytes=num_pages * one_page,
        work_bytes=4 * (config.step_tokens * per_token + rows * spec.vocab_size),
        mappable_bytes=mappable_bytes(model),
        state_bytes=(config.num_parallel + num_checkpoints) * one_state,
        num_checkpoints=num_checkpoints,
    )


def plan_checkpoints(config: EngineConfig, one_state: int, have_bytes: int | None) -> int:
    """How many states the prefix cache may keep. Raises: CapacityError where that is none."""
    if not one_state or not config.prefix_cache:
        return 0
    if config.memory.checkpoint_bytes:
        count = config.memory.checkpoint_bytes // one_state
        if count < 1:
            raise CapacityError(
                f"--checkpoint-bytes {config.memory.checkpoint_bytes} is less than one state "
                f"({one_state} bytes); give more, or say --no-prefix-cache"
            )
        return count
    room = config.memory.device_bytes or have_bytes
    budget = CHECKPOINT_BYTES if room is None else min(CHECKPOINT_BYTES, room // CHECKPOINT_PART)
    return min(max(budget // one_state, LEAST_CHECKPOINTS), MOST_CHECKPOINTS)


def choose_tier(plan: MemoryPlan, tier: str, have_bytes: int | None) -> MemoryPlan:
    """Leave the experts on disk where that is asked for, or where they do not fit in memory.

    Raises: LoadError when it is asked for and no bank can be read in place.
    """
    if tier == "disk" and not plan.mappable_bytes:
        raise LoadError(
            "--tier disk is of no use here: the model has no experts, or none whose format the "
            "kernels read as it is stored; leave it out"
        )
    short = have_bytes is not None and plan.need_bytes + _RESERVE_BYTES > have_bytes
    if tier == "disk" or (tier == "auto" and short and plan.mappable_bytes):
        return replace(plan, on_disk=True)
    return plan


def lock_room(plan: MemoryPlan, have_bytes: int | None) -> int:
    """Bytes that may be locked for experts read from disk: a part of what is left over."""
    if have_bytes is None or not plan.on_disk:
        return 0
    return max(have_bytes - plan.need_bytes - _RESERVE_BYTES, 0) // _LOCK_PART


def check_memory(plan: MemoryPlan, have_bytes: int | None) -> None:
    """Refuse what cannot fit. Raises: CapacityError with both numbers and what to change."""
    need = plan.need_bytes + _RESERVE_BYTES
    if have_bytes is None or need <= have_bytes:
        return
    raise CapacityError(
        f"the model needs {need / 1e9:.2f} GB ({plan.weights_bytes / 1e9:.2f} GB weights, "
        f"{plan.kv_bytes / 1e9:.2f} GB for {plan.num_pages * PAGE_TOKENS} tokens of context, "
        f"{plan.state_bytes / 1e9:.2f} GB states, {plan.work_bytes / 1e9:.2f} GB work memory) and "
        f"{have_bytes / 1e9:.2f} GB are free; "
        f"use a smaller context or fewer parallel requests, free memory, or use a smaller model"
    )


def _put_together(
    config: EngineConfig,
    model: FtwModel,
    spec: ModelConfig,
    plan: MemoryPlan,
    weights: TieredWeights,
    choice: KernelChoice,
    now_wall_s: float,
) -> Assembled:
    limits = BuildLimits(plan.context_tokens, config.step_tokens)
    placement = choose_placement(config, spec, choice.kernels)
    decoder = Builder(spec, weights, choice.kernels, limits, placement.store).decoder()
    pool = KvPool(kv_shapes(spec), plan.num_pages, DTYPES[config.compute.compute], page_aligned)
    dense_bytes = weights.held_bytes + weights.mapped_bytes - placement.store.host_bytes
    states = None
    if spec.has_state:
        states = StatePool(
            state_shapes(spec), config.num_parallel, page_aligned, plan.num_checkpoints
        )
    taken_bytes = pool.total_bytes + plan.state_bytes + plan.work_bytes + dense_bytes
    slot_notes = start_slots(placement, config, spec, taken_bytes)
    pages = PageAllocator(plan.num_pages)
    step_limits = RunnerLimits(plan.context_tokens, config.num_parallel, config.step_tokens)
    runner = Runner(decoder, pool, step_limits, states)
    scheduler = Scheduler(
        SchedulerLimits(
            plan.context_tokens,
            config.num_parallel,
            config.step_tokens,
            config.max_waiting,
            config.prefill_share,
        ),
        pages,
        spec.eos_ids,
        ReuseLimits(
            enabled=config.prefix_cache,
            stateful=spec.has_state,
            num_checkpoints=plan.num_checkpoints,
            first_slot=config.num_parallel,
        ),
    )
    memory = MemoryManager(
        placement=placement,
        runner=runner,
        scheduler=scheduler,
        pages=pages,
        kv_layers=kv_shapes(spec),
        kv_dtype=DTYPES[config.compute.compute],
        experts_per_token=experts_per_token(spec),
        automatic=slots_are_automatic(config),
    )
    notes = (
        *spec.notes,
        *spec.reference_notes,
        *choice.notes,
        *weights.notes,
        *_context_notes(config, plan, spec),
    )
    notes += (*slot_notes, *_tier_notes(weights), *_device_notes(config, placement))
    info = replace(
        _info(config, model, spec, choice, now_wall_s),
        context_tokens=plan.context_tokens,
        vocab_size=decoder.vocab_size,
        weights_bytes=weights.held_bytes,
        kv_bytes=pool.total_bytes,
        notes=notes,
    )
    return Assembled(runner, scheduler, pages, memory, info)


def _info(
    config: EngineConfig,
    model: FtwModel,
    spec: ModelConfig,
    choice: KernelChoice,
    now_wall_s: float,
) -> EngineInfo:
    """What is known of an engine before its sizes are."""
    return EngineInfo(
        protocol=PROTOCOL_VERSION,
        version=VERSION,
        ftw_id=_ftw_id(model),
        family=spec.family,
        device=config.compute.device,
        compute=config.compute.compute,
        context_tokens=0,
        max_sequences=config.num_parallel,
        vocab_size=0,
        weights_bytes=0,
        kv_bytes=0,
        num_experts=spec.num_experts,
        kernels=choice.described,
        pid=os.getpid(),
        started_wall_s=now_wall_s,
    )


def _tier_notes(weights: TieredWeights) -> tuple[str, ...]:
    if not weights.mapped_bytes:
        return ()
    return (
        f"slower tier: {weights.mapped_bytes / 1e9:.2f} GB of experts stay on disk and are read "
        f"as they are needed; their checksums were not checked at load",
    )


def _device_notes(config: EngineConfig, placement: Placement) -> tuple[str, ...]:
    if config.compute.device != "emulated":
        return ()
    said = "emulated device: the CPU stands in for an accelerator; its speed means nothing"
    if placement.strategy == config.compute.chosen_strategy:
        return (said,)
    return (said, f"strategy {config.compute.chosen_strategy} has no effect on a dense model")


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

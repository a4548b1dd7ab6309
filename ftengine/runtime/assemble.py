"""EngineConfig -> a loaded model with its pools: sizes compared first, then read.

The one place where memory is divided: weights, KV pages, work buffers.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ftengine.cache.kv_pool import KvFormat, KvPool, KvShape, page_bytes
from ftengine.cache.policy.pages import PAGE_TOKENS, PageAllocator, pages_for
from ftengine.cache.state_pool import StatePool, slot_bytes
from ftengine.config import EngineConfig
from ftengine.device.cpus import usable_cpus
from ftengine.device.cuda import GpuDevice
from ftengine.device.host_memory import available_bytes
from ftengine.device.torch_device import LateHugePages
from ftengine.errors import CapacityError, EngineError, FormatError, LoadError
from ftengine.experts.gpu_store import GpuStore
from ftengine.gpu.kernels import GpuKernels
from ftengine.kernels.dispatch import KernelChoice, choose_kernels
from ftengine.loader.borrowed import BorrowedBanks
from ftengine.loader.ftw import INDEX_NAME, FtwModel
from ftengine.loader.load import check_complete, kernel_bytes, read_model_config
from ftengine.loader.mapped import TieredWeights, mappable_bytes
from ftengine.models.build import Builder, BuildLimits, kv_shapes, state_shapes
from ftengine.models.spec import ModelConfig
from ftengine.models.widths import HEAD_ROWS, work_bytes
from ftengine.protocol import PROTOCOL_VERSION, EngineInfo
from ftengine.runtime.activations import activation_notes
from ftengine.runtime.gpu_assemble import GpuLoad, Pools, check_gpu_memory, put_on_gpu
from ftengine.runtime.gpu_open import (
    GPUS,
    choose_device,
    limit_device,
    make_tools,
    on_cpu,
    open_device,
)
from ftengine.runtime.memory import MemoryManager
from ftengine.runtime.park import identity_of, make_parking
from ftengine.runtime.placement import (
    Placement,
    choose_placement,
    experts_per_token,
    measure_rates,
    on_gpu,
    slots_are_automatic,
    start_slots,
)
from ftengine.runtime.runner import Runner, RunnerLimits
from ftengine.scheduler.reuse import ReuseLimits
from ftengine.scheduler.scheduler import Scheduler, SchedulerLimits
from ftman import __version__ as VERSION
from ftman import files

log = logging.getLogger(__name__)

KV_FORMATS = {
    "bf16": KvFormat(torch.bfloat16),
    "f32": KvFormat(torch.float32),
    "bfloat16": KvFormat(torch.bfloat16),
    "float32": KvFormat(torch.float32),
}
"""By --kv-format, or where that is auto by --compute."""
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
    borrowed: BorrowedBanks
    late_pages: LateHugePages | None


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
    def beside_device(self) -> MemoryPlan:
        """What the host holds where pages, states and work memory are a device's."""
        return replace(self, kv_bytes=0, state_bytes=0, work_bytes=0)

    @property
    def need_bytes(self) -> int:
        """All of it, without what stays on disk."""
        left = self.mappable_bytes if self.on_disk else 0
        return self.weights_bytes - left + self.kv_bytes + self.state_bytes + self.work_bytes


def assemble(config: EngineConfig, progress: Progress, now_wall_s: float) -> Assembled:
    """Load a model. Raises: LoadError, CapacityError with need and have; EngineError("no_gpu").

    Where nobody named a device and the GPU cannot do it, the CPU does, and a note says why.
    """
    device = choose_device(config)
    try:
        return _assemble(device.config, progress, now_wall_s, device.notes)
    except EngineError as error:
        on_gpu_by_itself = device.automatic and device.config.compute.device in GPUS
        if not on_gpu_by_itself or error.code != "kernel_missing":
            raise
        note = f"there is a GPU, and the CPU computes: {error.message}"
        log.warning("%s", note)
        progress.loaded_bytes = 0
        return _assemble(on_cpu(config), progress, now_wall_s, (note,))


def _assemble(
    config: EngineConfig, progress: Progress, now_wall_s: float, notes: tuple[str, ...]
) -> Assembled:
    """On the device that the config names."""
    choice = choose_kernels(
        kind=config.compute.kernels,
        library=config.compute.library,
        num_threads=config.compute.threads or usable_cpus(),
        cpu_target=config.compute.cpu_target,
        exact=config.compute.compute == "float32",
        activations=config.compute.activations,
    )
    choice = replace(choice, notes=(*choice.notes, *notes))
    torch.set_num_threads(choice.torch_threads)
    gpu = open_device(config) if config.compute.device in GPUS else None
    try:
        with FtwModel.open(config.ftw, check="reading") as model, torch.inference_mode():
            return _read(config, model, choice, gpu, progress, now_wall_s)
    except BaseException:
        if gpu is not None:
            gpu.close()
        raise


def _read(
    config: EngineConfig,
    model: FtwModel,
    choice: KernelChoice,
    gpu: GpuDevice | None,
    progress: Progress,
    now_wall_s: float,
) -> Assembled:
    """Sizes are compared first, on the host and on the device."""
    progress.total_bytes = sum(item.bytes for item in model.index.tensors)
    progress.total_bytes += sum(item.bytes for item in model.index.banks)
    spec = read_model_config(model)
    check_complete(model, spec)
    have = available_bytes()
    if gpu is None:
        plan = choose_tier(plan_memory(config, model, spec, have), config.memory.tier, have)
    else:
        limit_device(gpu, config.memory.device_bytes)
        plan = plan_memory(config, model, spec, gpu.free_bytes)
        check_gpu_plan(plan, sum(bank.bytes for bank in model.index.banks), gpu)
        plan = choose_tier(plan.beside_device, config.memory.tier, have)
    check_memory(plan, have)
    room = lock_room(plan, have)
    if gpu is None and not plan.on_disk:
        model.map_cached()
    weights = TieredWeights(model, config.compute.compute, progress.add, plan.on_disk, room)
    assembled = _put_together(config, model, spec, plan, weights, choice, gpu, now_wall_s)
    if not plan.on_disk:
        model.check_rest()
    weights.borrowed.forget_rest()
    return assembled


def check_gpu_plan(plan: MemoryPlan, bank_bytes: int, gpu: GpuDevice) -> None:
    """Refuse at once what cannot fit on a GPU, whatever becomes of the experts.

    A dense model's layers may take turns there. Raises: CapacityError with both numbers.
    """
    dense = max(plan.weights_bytes - bank_bytes, 0) if bank_bytes else 0
    said = (
        f"{dense / 1e9:.2f} GB weights beside experts, {plan.kv_bytes / 1e9:.2f} GB for "
        f"{plan.num_pages * PAGE_TOKENS} tokens of context, {plan.state_bytes / 1e9:.2f} GB states"
    )
    check_gpu_memory(dense + plan.kv_bytes + plan.state_bytes, gpu, said)


def plan_memory(
    config: EngineConfig, model: FtwModel, spec: ModelConfig, have_bytes: int | None
) -> MemoryPlan:
    """Sizes of everything, before anything is read. Raises: CapacityError."""
    context = config.context_tokens or spec.context_tokens
    context = min(context, spec.context_tokens)
    one_page = max(page_bytes(kv_shapes(spec), kv_format(config)), 1)
    num_pages = pages_for(context) * config.num_parallel
    if config.memory.kv_bytes:
        num_pages = config.memory.kv_bytes // one_page
        if num_pages < 1:
            raise CapacityError(
                f"--kv-bytes {config.memory.kv_bytes} is less than one page of "
                f"{PAGE_TOKENS} tokens ({one_page} bytes); give more"
            )
        context = min(context, num_pages * PAGE_TOKENS)
    rows = max(HEAD_ROWS, config.num_parallel)
    one_state = slot_bytes(state_shapes(spec))
    num_checkpoints = plan_checkpoints(config, one_state, have_bytes)
    return MemoryPlan(
        context_tokens=context,
        num_pages=num_pages,
        weights_bytes=kernel_bytes(model, config.compute.compute),
        kv_bytes=num_pages * one_page,
        work_bytes=work_bytes(spec, config.step_tokens, rows),
        mappable_bytes=mappable_bytes(model),
        state_bytes=(config.num_parallel + num_checkpoints) * one_state,
        num_checkpoints=num_checkpoints,
    )


def kv_format(config: EngineConfig) -> KvFormat:
    """How keys and values are kept; what cannot be q8_0 is kept as numbers are computed."""
    asked, compute = config.memory.kv_format, config.compute.compute
    if asked == "q8_0":
        return replace(KV_FORMATS[compute], q8_0=True)
    return KV_FORMATS[compute if asked == "auto" else asked]


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
    gpu: GpuDevice | None,
    now_wall_s: float,
) -> Assembled:
    if gpu is None:
        placed = _place_on_cpu(config, spec, plan, weights, choice)
    else:
        placed = _place_on_gpu(config, spec, plan, weights, choice, gpu)
        choice = replace(choice, described={**choice.described, **_gpu_described(gpu)})
    placement, runner, slot_notes = placed.placement, placed.runner, placed.notes
    pool, states = runner.pool, runner.states
    taken_bytes = 0 if gpu is not None else pool.total_bytes + plan.state_bytes + plan.work_bytes
    pages = PageAllocator(plan.num_pages)
    reuse = ReuseLimits(
        enabled=config.prefix_cache,
        stateful=spec.has_state,
        num_checkpoints=plan.num_checkpoints,
        first_slot=config.num_parallel,
    )
    started = _info(config, model, spec, choice, now_wall_s)
    identity = identity_of(started, spec, pool, plan.context_tokens)
    parked = make_parking(config, reuse, pool, states, identity, taken_bytes)
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
        reuse,
        parked.texts,
    )
    parked.connect(runner, scheduler)
    memory = MemoryManager(
        placement=placement,
        runner=runner,
        scheduler=scheduler,
        pages=pages,
        experts_per_token=experts_per_token(spec),
        automatic=slots_are_automatic(config),
        parked=parked,
    )
    notes = (
        *spec.notes,
        *spec.reference_notes,
        *choice.notes,
        *activation_notes(config, model.index, choice.kernels),
        *weights.notes,
        *_context_notes(config, plan, spec),
        *_kv_notes(pool.format, kv_shapes(spec)),
    )
    notes += (*slot_notes, *_tier_notes(weights), *_device_notes(config, placement))
    notes += parked.notes
    info = replace(
        started,
        context_tokens=plan.context_tokens,
        vocab_size=placed.vocab_size,
        weights_bytes=weights.held_bytes,
        kv_bytes=pool.total_bytes,
        kv_format=pool.kept_as,
        notes=notes,
    )
    return Assembled(runner, scheduler, pages, memory, info, weights.borrowed, placed.late_pages)


@dataclass(frozen=True)
class _Placed:
    """A model where it computes. notes: what the user should know of it.

    late_pages: of its pools' memory, None where that is not the CPU's.
    """

    placement: Placement
    runner: Runner
    vocab_size: int
    notes: tuple[str, ...]
    late_pages: LateHugePages | None = None


def _place_on_cpu(
    config: EngineConfig,
    spec: ModelConfig,
    plan: MemoryPlan,
    weights: TieredWeights,
    choice: KernelChoice,
) -> _Placed:
    """The CPU, and the emulated device where that is asked for. Raises: CapacityError."""
    limits = BuildLimits(plan.context_tokens, config.step_tokens)
    placement = choose_placement(config, spec, choice.kernels)
    decoder = Builder(spec, weights, choice.kernels, limits, placement.store).decoder()
    pools = _pools(config, spec, plan, together=True)
    late = LateHugePages()
    pool, states = pools.pages(late.allocate), pools.states(late.allocate)
    dense_bytes = weights.held_bytes + weights.mapped_bytes - placement.store.host_bytes
    taken_bytes = pool.total_bytes + plan.state_bytes + plan.work_bytes + dense_bytes
    notes = start_slots(placement, config, spec, taken_bytes)
    runner = Runner(decoder, pool, _runner_limits(config, plan), states)
    return _Placed(placement, runner, decoder.vocab_size, notes, late)


def _place_on_gpu(
    config: EngineConfig,
    spec: ModelConfig,
    plan: MemoryPlan,
    weights: TieredWeights,
    choice: KernelChoice,
    device: GpuDevice,
) -> _Placed:
    """A real GPU. Raises: CapacityError; EngineError for what no GPU kernel computes."""
    placement = on_gpu(config, spec, make_tools(config, device, choice.kernels))
    try:
        assert placement.tools is not None
        kernels = GpuKernels(placement.tools)
        limits = BuildLimits(plan.context_tokens, config.step_tokens)
        decoder = Builder(spec, weights, kernels, limits, placement.store).decoder()
        wide = "f32" if config.compute.compute == "float32" else "bf16"
        load = GpuLoad(decoder, spec.family, _runner_limits(config, plan), wide)
        runner, notes = put_on_gpu(load, _pools(config, spec, plan), placement, kernels)
        notes += measure_rates(placement.store, placement.tools, experts_per_token(spec))
        notes += start_slots(placement, config, spec, 0)
        if isinstance(placement.store, GpuStore):
            placement.store.prepare(range(1, config.num_parallel + 1))
    except BaseException:
        placement.close()
        raise
    return _Placed(placement, runner, decoder.vocab_size, notes)


def _gpu_described(gpu: GpuDevice) -> dict[str, str]:
    """For /info, beside the CPU's kernels: those are the branch's that computes experts here."""
    info = gpu.driver.info
    return {"set": "triton", "gpu": info.name, "gpu_target": info.target.label}


def _runner_limits(config: EngineConfig, plan: MemoryPlan) -> RunnerLimits:
    return RunnerLimits(plan.context_tokens, config.num_parallel, config.step_tokens)


def _pools(
    config: EngineConfig, spec: ModelConfig, plan: MemoryPlan, *, together: bool = False
) -> Pools:
    """Makers of pages and states, wherever their memory is."""

    def pages(allocate: Callable[[int], torch.Tensor]) -> KvPool:
        return KvPool(kv_shapes(spec), plan.num_pages, kv_format(config), allocate, together)

    def states(allocate: Callable[[int], torch.Tensor]) -> StatePool | None:
        if not spec.has_state:
            return None
        return StatePool(state_shapes(spec), config.num_parallel, allocate, plan.num_checkpoints)

    return Pools(pages, states)


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


def _kv_notes(kept: KvFormat, shapes: Sequence[KvShape]) -> tuple[str, ...]:
    """What becomes of q8_0 where not all of a model's keys and values can be that."""
    count, rest = sum(map(kept.quantizes, shapes)), replace(kept, q8_0=False).name
    if not kept.q8_0 or count == len(shapes) > 0:
        return ()
    if not count:
        return (f"q8_0 has no effect on the KV cache: this model's cannot be, and stays {rest}",)
    return (f"{count} of {len(shapes)} parts of the KV cache are q8_0; the others stay {rest}",)


def _ftw_id(model: FtwModel) -> str:
    path = model.path / INDEX_NAME
    try:
        return hashlib.sha256(files.read_bytes(path, limit=1 << 30)).hexdigest()
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None

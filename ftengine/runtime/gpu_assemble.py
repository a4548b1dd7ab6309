"""A loaded model put on a GPU: context first, then states, work memory, weights; the rest is slots.

Sizes are compared before anything is read. Everything is taken from the driver in exact sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ftengine.cache.kv_pool import KvPool
from ftengine.cache.state_pool import StatePool
from ftengine.device.cuda import GpuDevice
from ftengine.errors import CapacityError
from ftengine.experts.gpu_store import GpuStore
from ftengine.gpu.arena import Arena
from ftengine.gpu.best import BestLogits
from ftengine.gpu.dense_stream import StreamedPlacer, layers_that_stay
from ftengine.gpu.indices import DeviceIndices
from ftengine.gpu.kernels import Constants, GpuKernels, KernelMemory
from ftengine.gpu.placer import BLOCK_BYTES, ResidentPlacer
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.latent_operands import Chosen
from ftengine.layers.context import Workspace
from ftengine.models.decoder import Decoder
from ftengine.runtime.batching import index_bytes
from ftengine.runtime.gpu_model import (
    bytes_of_layers,
    check_runs_on_gpu,
    move_to_gpu,
    needs_of,
)
from ftengine.runtime.gpu_runner import GpuParts, GpuRunner, NoStore
from ftengine.runtime.placement import Placement
from ftengine.runtime.runner import RunnerLimits, StepMemory, head_rows

log = logging.getLogger(__name__)

_SPARE_PART = 64
"""One part of so many of the free memory is left over, for rounding and for the driver."""


@dataclass(frozen=True)
class Pools:
    """What makes pages and states, given where memory comes from."""

    pages: Callable[[Callable[[int], torch.Tensor]], KvPool]
    states: Callable[[Callable[[int], torch.Tensor]], StatePool | None]


@dataclass(frozen=True)
class GpuLoad:
    """A decoder in host memory, and what is to become of it. wide: format of plain numbers."""

    decoder: Decoder
    family: str
    limits: RunnerLimits
    wide: str


def put_on_gpu(
    load: GpuLoad, pools: Pools, placement: Placement, kernels: GpuKernels
) -> tuple[GpuRunner, tuple[str, ...]]:
    """The runner, with everything on the device but slots, and what the user should know.

    Raises: EngineError("kernel_missing") naming family and block; CapacityError with both numbers.
    """
    check_runs_on_gpu(load.decoder, load.family)
    undo: list[Callable[[], None]] = []
    try:
        return _put(load, pools, placement, kernels, undo)
    except BaseException:
        for release in reversed(undo):
            release()
        raise


def check_gpu_memory(need_bytes: int, device: GpuDevice, said: str) -> None:
    """Refuse at once what cannot fit. Raises: CapacityError with both numbers."""
    free = device.free_bytes
    if need_bytes > free:
        raise CapacityError(
            f"the model needs {need_bytes / 1e9:.2f} GB on the GPU ({said}) and {free / 1e9:.2f} "
            f"GB of its {device.total_bytes / 1e9:.2f} GB are free; use a smaller context or "
            f"fewer parallel requests, end what else uses the GPU, or use --device cpu",
            code="device_memory",
        )


def _put(
    load: GpuLoad,
    pools: Pools,
    placement: Placement,
    kernels: GpuKernels,
    undo: list[Callable[[], None]],
) -> tuple[GpuRunner, tuple[str, ...]]:
    device, limits = kernels.tools.device, load.limits
    pool, states = pools.pages(device.allocate), pools.states(device.allocate)
    placer = ResidentPlacer(device)
    undo.append(placer.close)
    memory, indices, arena = _step_memory(load, states is not None, kernels, placer, undo)
    best = BestLogits(kernels.tools, head_rows(limits), load.decoder.vocab_size)
    undo.append(best.close)
    store = placement.store
    if isinstance(store, GpuStore):
        store.reserve_work(limits.step_tokens)
    weights, notes = _weights_placer(load, placement, kernels.tools)
    undo.append(weights.close)
    decoder = move_to_gpu(load.decoder, weights, load.wide)
    weights.finish()
    placer.finish()
    stepped = store if isinstance(store, GpuStore) else NoStore()
    parts = GpuParts(kernels, indices, best, memory, stepped, tuple(reversed(undo)))
    runner = GpuRunner(decoder, pool, limits, states, parts)
    log.info("gpu: %d bytes of work memory, %d free for experts", arena, device.free_bytes)
    return runner, notes


def _step_memory(
    load: GpuLoad,
    has_states: bool,
    kernels: GpuKernels,
    placer: ResidentPlacer,
    undo: list[Callable[[], None]],
) -> tuple[StepMemory, DeviceIndices, int]:
    """Buffers of a step, in which nothing grows any more."""
    decoder, limits, device = load.decoder, load.limits, kernels.tools.device

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return placer.place(-1, tensor)

    workspace = Workspace(decoder.buffer_shape, limits.step_tokens, place)
    sizes = (limits.step_tokens, limits.max_sequences, limits.context_tokens)
    indices = DeviceIndices(device, index_bytes(*sizes, has_states))
    undo.append(indices.close)
    rows = head_rows(limits)
    needs = needs_of(decoder)
    arena = Arena(
        device,
        needs.arena_bytes(limits.step_tokens, rows, limits.max_sequences, limits.context_tokens),
    )
    undo.append(arena.close)
    width = decoder.buffer_shape.streams * decoder.buffer_shape.hidden
    kept, picked = (place(torch.zeros(limits.step_tokens * width)) for _ in range(2))
    constants = Constants(max(limits.step_tokens, rows), place)
    choice = None
    if needs.chosen:
        slots = torch.zeros(limits.step_tokens, needs.chosen, dtype=torch.int32)
        choice = Chosen(place(slots), place(torch.zeros(limits.step_tokens, dtype=torch.int32)))
    kernels.work_in(KernelMemory(arena, constants, kept, picked, choice))
    logits = place(torch.zeros(rows, decoder.vocab_size))
    return StepMemory(workspace, indices, logits, kernels.gather), indices, arena.total_bytes


def _weights_placer(
    load: GpuLoad, placement: Placement, tools: GpuTools
) -> tuple[ResidentPlacer | StreamedPlacer, tuple[str, ...]]:
    """All layers stay where they fit; of a dense model that is larger, some take turns."""
    layers, outside = bytes_of_layers(load.decoder)
    free = tools.device.free_bytes
    if isinstance(placement.store, GpuStore):
        said = f"{(sum(layers) + outside) / 1e9:.2f} GB of it weights beside experts"
        check_gpu_memory(sum(layers) + outside, tools.device, said)
        return ResidentPlacer(tools.device), ()
    check_gpu_memory(outside, tools.device, "embedding and head alone")
    spare = free // _SPARE_PART + BLOCK_BYTES
    resident = layers_that_stay(free - outside - spare, layers)
    if resident == len(layers):
        return ResidentPlacer(tools.device), ()
    largest = max(layers[resident:])
    streamed = sum(layers[resident:])
    note = (
        f"slower: {len(layers) - resident} of {len(layers)} layers do not fit on the GPU and are "
        f"copied there in every step ({streamed / 1e9:.2f} GB)"
    )
    return StreamedPlacer(tools.device, largest, resident), (note,)

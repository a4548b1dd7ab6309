"""Which store holds the routed experts, and how many slots its device gets. Context comes first."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ftengine.calibrate.gpu import measure_gpu
from ftengine.config import EngineConfig
from ftengine.device.base import Device
from ftengine.device.emulated import EmulatedDevice, EmulatedSettings
from ftengine.device.host_memory import available_bytes
from ftengine.device.machine import Machine
from ftengine.errors import CapacityError, EngineError
from ftengine.experts.cpu import CpuStore
from ftengine.experts.gpu import DeviceStore, StoreSettings
from ftengine.experts.gpu_store import GpuStore
from ftengine.experts.policy.budget import Hysteresis
from ftengine.experts.policy.rates import Rates
from ftengine.experts.timing import rates_of
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.dispatch import Kernels, ReferenceKernels
from ftengine.models.spec import ModelConfig, RouterSpec

log = logging.getLogger(__name__)

EMULATED_MACHINE = Machine(
    name="emulated",
    title="no real machine: what the virtual seconds of the emulated device are of",
    vram_bytes=0,
    ram_bytes=0,
    device_bytes_per_s=1e12,
    device_flops_per_s=1e14,
    link_bytes_per_s=40e9,
    host_bytes_per_s=50e9,
    host_left_bytes_per_s=20e9,
    link_latency_s=0.0,
    copy_latency_s=0.0,
    cpu_latency_s=0.0,
    launch_s=0.0,
)
"""The planner needs ratios, whatever the speed of the processor that stands in for the device."""
FIRST_RATES = Rates(link_bytes_per_s=12e9, host_bytes_per_s=40e9, host_left_bytes_per_s=25e9)
"""Of a GPU whose rates were not measured: half of a PCIe 4.0 x16 link, two channels."""
_UNKNOWN_MEMORY_BYTES = 8 << 30
_RESERVE_BYTES = 512 << 20
_RESERVE_SHARE = 0.05
"""Left free of the device where slots are automatic, so that others find some; the smaller one."""


@dataclass(frozen=True)
class Placement:
    """Where routed experts live. device is None where the CPU computes them all.

    tools: of a real GPU, which holds everything but the host's banks; None else.
    """

    store: CpuStore | DeviceStore
    device: Device | None
    strategy: str
    tools: GpuTools | None = None

    @property
    def holds_pools(self) -> bool:
        """Whether KV pages and states lie in the device's memory."""
        return self.tools is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know by now."""
        return self.store.notes if isinstance(self.store, GpuStore) else ()

    def close(self) -> None:
        """End the threads of store and device; may be called twice."""
        if isinstance(self.store, DeviceStore):
            self.store.close()
        if self.tools is not None:
            self.tools.launcher.close()
        if self.device is not None:
            self.device.close()


def experts_per_token(spec: ModelConfig) -> int:
    """Most experts that one token takes in a layer; 0 for a dense model."""
    return max((r.num_experts_per_tok for r in _routers(spec)), default=0)


def on_gpu(config: EngineConfig, spec: ModelConfig, tools: GpuTools) -> Placement:
    """The store for this model on a real GPU, still without slots."""
    strategy = config.compute.chosen_strategy
    if not spec.num_experts:
        return Placement(CpuStore(ReferenceKernels()), tools.device, "resident", tools)
    settings = StoreSettings(strategy, FIRST_RATES, None, experts_per_token(spec))
    return Placement(GpuStore(tools, settings), tools.device, strategy, tools)


def measure_rates(store: CpuStore | DeviceStore, tools: GpuTools, places: int) -> tuple[str, ...]:
    """Let the planner start from this machine's own rates. Returns notes where it cannot.

    places: experts of one token.
    """
    if not isinstance(store, GpuStore):
        return ()
    bank = store.measurable
    if bank is None:
        return ()
    try:
        rates = measure_gpu(tools, bank, places)
    except EngineError as error:
        first = FIRST_RATES
        return (
            f"the link to the GPU was not measured ({error.message}); misses are divided as if it "
            f"gave {first.link_bytes_per_s / 1e9:.0f} GB/s and the CPU "
            f"{first.host_bytes_per_s / 1e9:.0f} GB/s, until steps have been timed",
        )
    store.plan_with(rates)
    log.info("measured with the GPU: %s", rates)
    return ()


def choose_placement(config: EngineConfig, spec: ModelConfig, kernels: Kernels) -> Placement:
    """The store for this model without a real GPU, still without slots."""
    compute = config.compute
    device = None if compute.device == "cpu" else _emulated(config)
    if device is None or compute.chosen_strategy == "cpu" or not spec.num_experts:
        return Placement(CpuStore(kernels), device, "cpu")
    machine = EMULATED_MACHINE
    settings = StoreSettings(compute.chosen_strategy, rates_of(machine), machine)
    return Placement(DeviceStore(kernels, device, settings), device, compute.chosen_strategy)


def start_slots(
    placement: Placement, config: EngineConfig, spec: ModelConfig, taken_bytes: int
) -> tuple[str, ...]:
    """Reserve what is not experts on the device, then give the rest to slots. Returns notes.

    Raises: CapacityError with need and have.
    """
    if placement.device is not None and not placement.holds_pools:
        placement.device.reserve(taken_bytes)
    store = placement.store
    if not isinstance(store, DeviceStore):
        return ()
    assert placement.device is not None
    free_bytes = placement.device.free_bytes
    if slots_are_automatic(config):
        free_bytes -= following(placement.device).reserve_bytes
    wanted = _wanted_slots(config, store, max(free_bytes, 0))
    num_slots = min(wanted, store.num_experts)
    check_slots(num_slots, store, experts_per_token(spec), placement.strategy)
    store.start(num_slots)
    if wanted > store.num_experts:
        return (f"expert slots limited to {num_slots}: the model has no more experts",)
    return ()


def slots_are_automatic(config: EngineConfig) -> bool:
    """Whether the number of slots follows the device's free memory by itself."""
    asked = config.memory.expert_slots or config.memory.expert_bytes
    return not asked and config.compute.chosen_strategy != "resident"


def following(device: Device) -> Hysteresis:
    """How the slots follow this device's free memory, and what is always left free."""
    return Hysteresis(min(_RESERVE_BYTES, int(device.total_bytes * _RESERVE_SHARE)))


def check_slots(num_slots: int, store: DeviceStore, least: int, strategy: str) -> None:
    """Refuse a pool that could not serve one token. Raises: CapacityError with both numbers."""
    if strategy == "resident":
        least = store.num_experts
    if num_slots < least:
        size = store.slot_bytes
        why = "to hold every expert" if strategy == "resident" else "for the experts of one token"
        raise CapacityError(
            f"the strategy {strategy} needs {least} expert slots ({least * size} bytes) {why} and "
            f"would have {num_slots} ({num_slots * size} bytes); give the device more memory, use "
            f"a smaller context, or another strategy"
        )


def _routers(spec: ModelConfig) -> list[RouterSpec]:
    return [layer.experts.router for layer in spec.layers if layer.experts is not None]


def _emulated(config: EngineConfig) -> EmulatedDevice:
    free = available_bytes() or _UNKNOWN_MEMORY_BYTES
    return EmulatedDevice(EmulatedSettings(config.memory.device_bytes or free // 2))


def _wanted_slots(config: EngineConfig, store: DeviceStore, free_bytes: int) -> int:
    memory = config.memory
    if memory.expert_slots:
        return memory.expert_slots
    return (memory.expert_bytes or min(free_bytes, store.num_experts * store.slot_bytes)) // (
        store.slot_bytes
    )

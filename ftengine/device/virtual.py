"""What MoE layers submit to the virtual clock: decode layers, and prefill through two buffers.

Takes the executor's own numbers (hits, fills, experts on the CPU); decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftengine.device.clock import CPU, DEVICE, LINK, Operation, VirtualClock
from ftengine.device.machine import Machine


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one decode layer: each branch from its start to its end, and the whole."""

    fill_s: float
    cpu_s: float
    layer_s: float


@dataclass(frozen=True)
class PrefillLayer:
    """One layer of a prefill. Units: bytes that must cross the link; seconds of device work."""

    link_bytes: float
    device_s: float
    num_copies: int = 1


def run_decode_layer(
    clock: VirtualClock,
    row_bytes: int,
    num_hits: int,
    fills: int,
    on_cpu: int,
    dense_s: float = 0.0,
) -> LayerTimes:
    """One layer: dense part, then the CPU branch, the fills and one grouped matmul over G."""
    machine = clock.machine
    begun = clock.now_s
    router = clock.submit(DEVICE, dense_s, machine.launch_s)
    cpu = None
    if on_cpu:
        cpu = clock.submit(CPU, on_cpu * row_bytes, machine.cpu_latency_s, [router])
    copies: list[Operation] = []
    for idx in range(fills):
        latency = machine.copy_latency_s + (machine.link_latency_s if idx == 0 else 0.0)
        copies.append(clock.submit(LINK, row_bytes, latency, [router]))
    if num_hits + fills:
        seconds = (num_hits + fills) * row_bytes / machine.device_bytes_per_s
        clock.submit(DEVICE, seconds, machine.launch_s, copies or [router])
    ended = clock.run()
    fill_s = copies[-1].finished_s - copies[0].started_s if copies else 0.0
    return LayerTimes(fill_s, cpu.seconds if cpu is not None else 0.0, ended - begun)


def run_prefill(clock: VirtualClock, layers: Sequence[PrefillLayer]) -> float:
    """Whole layers through two buffers: the next layer copies while this one computes.

    A buffer is free again when the layer that used it is computed. Units: seconds of the pass.
    """
    machine = clock.machine
    begun = clock.now_s
    computed: list[Operation] = []
    for idx, layer in enumerate(layers):
        # Later layers are queued ahead: the latency of starting a batch is seen once.
        latency = layer.num_copies * machine.copy_latency_s
        latency += machine.link_latency_s if idx == 0 else 0.0
        free = computed[idx - 2 : idx - 1] if idx >= 2 else []
        copied = clock.submit(LINK, layer.link_bytes, latency, free)
        computed.append(clock.submit(DEVICE, layer.device_s, machine.launch_s, [copied]))
    return clock.run() - begun


def run_prefill_one_buffer(machine: Machine, layers: Sequence[PrefillLayer]) -> float:
    """The same work with one buffer: copy, compute, copy, compute. Units: seconds."""
    clock = VirtualClock(machine)
    last: list[Operation] = []
    for layer in layers:
        copied = clock.submit(LINK, layer.link_bytes, machine.link_latency_s, last)
        last = [clock.submit(DEVICE, layer.device_s, machine.launch_s, [copied])]
    return clock.run()

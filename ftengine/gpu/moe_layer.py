"""One MoE layer of a decode step as work on streams: admission, CPU branch, fills, experts, merge.

Everything that changes is data on the device, so the same launches serve every step and can be
captured. The kernels are kernels/triton's; what they decide is specified in experts/policy.

    main: admission -+- copy fills - gate_up - down -+- merge
                     |                               |
    side:            +- x, ids, rows out - CPU - parts in
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ftengine.gpu.cpu_pairs import CpuPairs, PairSizes
from ftengine.gpu.hand_off import HandOff
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.stream import Event, Stream
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton import builds, expert_calls
from ftengine.kernels.triton.calls import KernelCall
from ftengine.kernels.triton.expert_calls import AdmissionResult, AdmissionTables

Allocate = Callable[[int], torch.Tensor]
"""Device.allocate: bytes -> uint8 tensor on the device."""


@dataclass(frozen=True)
class DeviceLayer:
    """One layer. host: its experts, pinned, as kernels see them; slots: the pool in its formats.

    bank: the same experts for the CPU branch.
    """

    bank: ExpertBank
    host: torch.Tensor
    slots: ExpertBank


@dataclass(frozen=True)
class CpuSide:
    """The CPU branch: its stream, its buffers, and its tasks: size_idx * layers + layer."""

    stream: Stream
    pairs: CpuPairs
    hand_off: HandOff


class MoeBuffers:
    """Device buffers of a step, shared by all layers.

    Shape: x, out float32 [tokens, hidden]; ids int32 and weights float32 [tokens, places]; inner
    [pairs, inter]; parts, cpu_parts [pairs, hidden].
    """

    def __init__(self, allocate: Allocate, sizes: PairSizes, inter: int) -> None:
        self.sizes = sizes
        self._allocate = allocate
        self.memory: list[torch.Tensor] = []
        tokens, pairs, hidden = sizes.tokens, sizes.pairs, sizes.hidden
        self.x, self.out = self._floats(tokens, hidden), self._floats(tokens, hidden)
        self.ids = self._floats(tokens, sizes.places).view(torch.int32)
        self.weights = self._floats(tokens, sizes.places)
        self.inner = self._floats(pairs, inter)
        self.parts, self.cpu_parts = self._floats(pairs, hidden), self._floats(pairs, hidden)

    def result(self, tokens: int) -> AdmissionResult:
        """Admission's output for steps of so many tokens."""
        pairs = tokens * self.sizes.places
        width = builds.power_of_two(pairs, 16)
        rows, fills, on_cpu, found = (
            self._floats(count, cols).view(torch.int32)
            for count, cols in ((1, pairs), (width, 2), (1, width), (1, 4))
        )
        return AdmissionResult(rows.view(-1), fills, on_cpu.view(-1), found.view(-1))

    def _floats(self, rows: int, cols: int) -> torch.Tensor:
        memory = self._allocate(4 * rows * cols)
        self.memory.append(memory)
        return memory.view(torch.float32).view(rows, cols)


class MoeStep:
    """Enqueues layers. prepare each number of tokens first, then enqueue, captured or not.

    cpu: None for the strategies without a CPU branch.
    """

    def __init__(
        self,
        launcher: Launcher,
        stream: Stream,
        layers: Sequence[DeviceLayer],
        buffers: MoeBuffers,
        tables: AdmissionTables,
        cpu: CpuSide | None,
    ) -> None:
        self._launcher = launcher
        self._stream = stream
        self._layers = layers
        self._buffers = buffers
        self._tables = tables
        self._cpu = cpu
        self._results: dict[int, AdmissionResult] = {}
        self._forked, self._joined = Event(stream.driver), Event(stream.driver)

    def prepare(self, tokens: int) -> None:
        """Compile and load what steps of so many tokens launch, and make their buffers."""
        if tokens not in self._results:
            self._results[tokens] = self._buffers.result(tokens)
        for layer in range(len(self._layers)):
            for call in self._calls(layer, tokens):
                self._launcher.load(call.build)

    def enqueue(self, layer: int, tokens: int, size_idx: int = 0) -> None:
        """out = the weighted sum of the routed experts, for x, ids and weights in the buffers."""
        admission, *experts, merge = self._calls(layer, tokens)
        self._launch(admission)
        if self._cpu is not None:
            self._branch(self._cpu, size_idx * len(self._layers) + layer, tokens)
        for call in experts:
            self._launch(call)
        if self._cpu is not None:
            self._stream.wait(self._joined)
        self._launch(merge)

    def close(self) -> None:
        """Give the events back."""
        self._forked.close()
        self._joined.close()

    def _calls(self, layer: int, tokens: int) -> Iterator[KernelCall]:
        """Admission, fills, gate_up, down, merge."""
        item, buffers, result = self._layers[layer], self._buffers, self._results[tokens]
        x, ids = buffers.x[:tokens], buffers.ids[:tokens]
        rows, pairs = result.rows, ids.numel()
        yield expert_calls.admission(self._tables, result, layer, ids, item.bank.row_bytes)
        yield expert_calls.copy_rows(item.host, item.slots.data, result.fills, result.found)
        yield expert_calls.gate_up(x, rows, item.slots, buffers.inner[:pairs])
        yield expert_calls.down(buffers.inner[:pairs], rows, item.slots, buffers.parts[:pairs])
        yield expert_calls.merge(
            buffers.parts[:pairs],
            buffers.cpu_parts[:pairs],
            rows,
            buffers.weights[:tokens],
            buffers.out[:tokens],
            accumulate=False,
        )

    def _branch(self, cpu: CpuSide, task: int, tokens: int) -> None:
        side, buffers, hosts = cpu.stream, self._buffers, cpu.pairs
        pairs, row_bytes = tokens * buffers.sizes.places, 4 * buffers.sizes.hidden
        self._stream.record(self._forked)
        side.wait(self._forked)
        side.copy_out(hosts.x, buffers.x.data_ptr(), tokens * row_bytes)
        side.copy_out(hosts.ids, buffers.ids.data_ptr(), 4 * pairs)
        side.copy_out(hosts.rows, self._results[tokens].rows.data_ptr(), 4 * pairs)
        cpu.hand_off.enqueue(side, task)
        side.copy_in(buffers.cpu_parts.data_ptr(), hosts.parts, pairs * row_bytes)
        side.record(self._joined)

    def _launch(self, call: KernelCall) -> None:
        self._launcher.launch(self._launcher.load(call.build), call.arguments(), self._stream)

"""One MoE layer of a decode step as work on streams: admission, CPU branch, fills, experts, merge.

Everything that changes is data on the device, so the same launches serve every step and can be
captured. The kernels are kernels/triton's; what they decide is specified in experts/policy.

    main: admission -+- copy fills - gate_up - down - shared experts -+- merge
                     |                                                |
    side:            +------- x, ids, rows out - CPU - parts in ------+
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    bank: the same experts for the CPU branch. host_address: where kernels see host, if elsewhere.
    """

    bank: ExpertBank
    host: torch.Tensor
    slots: ExpertBank
    host_address: int | None = None


@dataclass(frozen=True)
class Routing:
    """One layer's work. Shape: x, out float32 [n, hidden]; ids int32, weights float32 [n, k].

    All contiguous. accumulate: the sum is added to out. beside: enqueues what may run on the main
    stream while the CPU computes.
    """

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    accumulate: bool = False
    beside: Callable[[], None] | None = None


@dataclass(frozen=True)
class Marks:
    """Timed events around a layer's branches, and where its counts go (pinned, int32 [4])."""

    fills_begin: Event
    fills_end: Event
    cpu_begin: Event
    cpu_end: Event
    found: int


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
        self.prepare_size(tokens)
        for layer in range(len(self._layers)):
            for accumulate in (False, True):
                for call in self._calls(layer, self._own(tokens, accumulate)):
                    self._launcher.load(call.build)

    def prepare_size(self, tokens: int) -> None:
        """Only the buffers; builds are loaded when they are launched, which no capture allows."""
        if tokens not in self._results:
            self._results[tokens] = self._buffers.result(tokens)

    def enqueue(self, layer: int, tokens: int, size_idx: int = 0) -> None:
        """out = the weighted sum of the routed experts, for x, ids and weights in the buffers."""
        task = size_idx * len(self._layers) + layer
        self.enqueue_routed(layer, self._own(tokens, False), task)

    def enqueue_routed(
        self, layer: int, work: Routing, task: int, marks: Marks | None = None
    ) -> None:
        """The same for tensors of the caller's. task: the CPU branch's, for so many tokens."""
        admission, fills, gate_up, down, merge = self._calls(layer, work)
        self._launch(admission)
        if self._cpu is not None:
            self._branch(self._cpu, task, work, marks)
        self._mark(None if marks is None else marks.fills_begin)
        self._launch(fills)
        self._mark(None if marks is None else marks.fills_end)
        self._launch(gate_up)
        self._launch(down)
        if work.beside is not None:
            work.beside()
        if self._cpu is not None:
            self._stream.wait(self._joined)
        self._launch(merge)
        if marks is not None:
            found = self._results[work.ids.shape[0]].found
            self._stream.copy_out(marks.found, found.data_ptr(), 4 * found.numel())

    def close(self) -> None:
        """Give the events back."""
        self._forked.close()
        self._joined.close()

    def _own(self, tokens: int, accumulate: bool) -> Routing:
        """The buffers' first rows."""
        mine = self._buffers
        return Routing(
            mine.x[:tokens],
            mine.ids[:tokens],
            mine.weights[:tokens],
            mine.out[:tokens],
            accumulate,
        )

    def _calls(self, layer: int, work: Routing) -> tuple[KernelCall, ...]:
        """Admission, fills, gate_up, down, merge."""
        item, buffers = self._layers[layer], self._buffers
        result = self._results[work.ids.shape[0]]
        rows, pairs, slots = result.rows, work.ids.numel(), item.slots
        inner = buffers.inner.view(-1)[: pairs * slots.inter].view(pairs, slots.inter)
        parts = buffers.parts[:pairs]
        return (
            expert_calls.admission(self._tables, result, layer, work.ids, item.bank.row_bytes),
            expert_calls.copy_rows(
                item.host, slots.data, result.fills, result.found, item.host_address
            ),
            expert_calls.gate_up(work.x, rows, slots, inner),
            expert_calls.down(inner, rows, slots, parts),
            expert_calls.merge(
                parts, buffers.cpu_parts[:pairs], rows, work.weights, work.out, work.accumulate
            ),
        )

    def _branch(self, cpu: CpuSide, task: int, work: Routing, marks: Marks | None) -> None:
        side, hosts, tokens = cpu.stream, cpu.pairs, work.ids.shape[0]
        pairs, row_bytes = work.ids.numel(), 4 * self._buffers.sizes.hidden
        self._stream.record(self._forked)
        side.wait(self._forked)
        if marks is not None:
            side.record(marks.cpu_begin)
        side.copy_out(hosts.x, work.x.data_ptr(), tokens * row_bytes)
        side.copy_out(hosts.ids, work.ids.data_ptr(), 4 * pairs)
        side.copy_out(hosts.rows, self._results[tokens].rows.data_ptr(), 4 * pairs)
        cpu.hand_off.enqueue(side, task)
        side.copy_in(self._buffers.cpu_parts.data_ptr(), hosts.parts, pairs * row_bytes)
        if marks is not None:
            side.record(marks.cpu_end)
        side.record(self._joined)

    def _mark(self, event: Event | None) -> None:
        if event is not None:
            self._stream.record(event)

    def _launch(self, call: KernelCall) -> None:
        self._launcher.launch(self._launcher.load(call.build), call.arguments(), self._stream)

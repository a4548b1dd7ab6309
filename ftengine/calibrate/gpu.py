"""Rates of experts with a GPU: the link alone, the CPU's expert kernel alone, and both at once.

Taken when an engine starts, with its own experts, so that the planner begins with this machine and
this weight format. A small part of a second; what the CPU does alone is cpu.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ftengine.errors import EngineError
from ftengine.experts.policy.rates import Rates
from ftengine.gpu.memory import PinnedBlock
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton import expert_calls
from ftengine.kernels.triton.calls import KernelCall
from ftman.clock import SYSTEM, Clock

LINK_BYTES = 32 << 20
"""Of one gather: much more than its launch costs."""
HOST_BYTES = 256 << 20
"""Of one pass of the CPU over experts: more than any cache holds, where the bank has as much."""
MOST_ROWS = 1024
ROUNDS = 3
_MOST_GATHERS = 256
"""Enqueued beside one pass of the CPU, at most."""
_LONGER = 1.5
"""So much longer than that pass alone they are to take: it is slower beside them."""
_TASK_BYTES = 8


def measure_gpu(tools: GpuTools, bank: ExpertBank, places: int, clock: Clock = SYSTEM) -> Rates:
    """The rates that a planner starts from. bank: in memory; places: experts of one token.

    Raises: EngineError without native kernels; CapacityError where a gather does not fit.
    """
    native = tools.native
    if native is None:
        raise EngineError("the native kernels are missing", code="native_missing")
    host = _Pass(native, bank, min(places, bank.num_experts))
    gather = _Gather(tools, bank.row_bytes)
    try:
        link_s = min(gather.seconds(clock) for _ in range(ROUNDS + 1))
        alone_s = min(host.seconds(clock) for _ in range(ROUNDS + 1))
        copies = min(math.ceil(_LONGER * alone_s / link_s) + 1, _MOST_GATHERS)
        gather.enqueue(copies)
        beside_s = host.seconds(clock)
        tools.device.synchronize()
    finally:
        gather.close()
    alone = host.num_bytes / alone_s
    return Rates(
        link_bytes_per_s=gather.num_bytes / link_s,
        host_bytes_per_s=alone,
        host_left_bytes_per_s=min(host.num_bytes / beside_s, alone),
    )


@dataclass(frozen=True)
class _Pass:
    """One token after the other through experts of a bank."""

    native: NativeKernels
    bank: ExpertBank
    places: int

    @property
    def _steps(self) -> int:
        wanted = math.ceil(HOST_BYTES / (self.bank.row_bytes * self.places))
        return max(min(wanted, self.bank.num_experts // self.places), 1)

    @property
    def num_bytes(self) -> int:
        """Of all experts that a pass goes through."""
        return self._steps * self.places * self.bank.row_bytes

    def seconds(self, clock: Clock) -> float:
        """One pass."""
        x = torch.full((1, self.bank.hidden), 0.01, device="cpu")
        out = torch.empty_like(x)
        weights = torch.full((1, self.places), 1 / self.places, device="cpu")
        ids = torch.arange(self.places, dtype=torch.int32, device="cpu")[None]
        started = clock.monotonic()
        for step in range(self._steps):
            self.native.expert_ffn(x, ids + step * self.places, weights, self.bank, out=out)
        return max(clock.monotonic() - started, 1e-9)


class _Gather:
    """Rows of pinned host memory that a kernel reads, as the fills of a decode step do."""

    def __init__(self, tools: GpuTools, row_bytes: int) -> None:
        self._tools = tools
        rows = min(max(LINK_BYTES // row_bytes, 1), MOST_ROWS)
        self.num_bytes = rows * row_bytes
        device, driver = tools.device, tools.device.driver
        self._memory = device.allocate(self.num_bytes + (rows + 1) * _TASK_BYTES)
        try:
            self._pinned = PinnedBlock(driver, self.num_bytes)
        except EngineError:
            device.release(self._memory)
            raise
        source = self._pinned.take(self.num_bytes)
        self._call = self._make(rows, row_bytes, driver.device_address(source))

    def _make(self, rows: int, row_bytes: int, source: int) -> KernelCall:
        target = self._memory[: self.num_bytes].view(rows, row_bytes)
        told = self._memory[self.num_bytes :].view(torch.int32)
        tasks, count = told[: 2 * rows].view(rows, 2), told[2 * rows : 2 * rows + 1]
        pairs = [number for row in range(rows) for number in (row, row)]
        host = torch.tensor([*pairs, rows, 0], dtype=torch.int32, device="cpu")
        stream = self._tools.device.compute
        stream.copy_in(told.data_ptr(), host.data_ptr(), host.numel() * 4)
        stream.synchronize()
        return expert_calls.copy_rows(target, target, tasks, count, source)

    def enqueue(self, times: int) -> None:
        """Put it on the stream so often."""
        for _ in range(times):
            self._tools.launch(self._call)

    def seconds(self, clock: Clock) -> float:
        """One gather."""
        self._tools.device.synchronize()
        started = clock.monotonic()
        self.enqueue(1)
        self._tools.device.synchronize()
        return max(clock.monotonic() - started, 1e-9)

    def close(self) -> None:
        """Give all memory back."""
        self._tools.device.synchronize()
        self._pinned.close()
        self._tools.device.release(self._memory)

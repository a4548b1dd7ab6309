"""A chunk's missing experts on the CPU: what the router said comes to the host, parts go back.

For turns of a few dozen tokens, which should not stream whole layers. Resident experts are computed
on the device meanwhile. Waits for the router of every layer, so it is never captured.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from ftengine.experts.counters import LayerCounters
from ftengine.experts.host import HostBank
from ftengine.experts.on_gpu.grouped import ChunkSizes, GroupedExperts
from ftengine.gpu.memory import LINE_BYTES, PinnedBlock
from ftengine.gpu.moe_layer import Routing
from ftengine.gpu.pair_callback import ExpertKernel, array_at, compute_pairs
from ftengine.gpu.stream import Event, Stream
from ftengine.gpu.tools import GpuTools

DeviceWork = Callable[[], None]


class WideCpu:
    """Pinned buffers and a stream for chunks of up to so many tokens. One layer at a time."""

    def __init__(self, tools: GpuTools, sizes: ChunkSizes, kernel: ExpertKernel) -> None:
        self._tools = tools
        self._kernel = kernel
        self._sizes = sizes
        device, pairs = tools.device, sizes.pairs
        self._side = Stream(device.driver)
        self._routed, self._copied = Event(device.driver), Event(device.driver)
        wanted = (4 * sizes.tokens * sizes.hidden, 4 * pairs, 4 * pairs, 4 * pairs * sizes.hidden)
        self._block = PinnedBlock(device.driver, sum(wanted) + LINE_BYTES * len(wanted))
        self._x, self._ids, self._rows, self._parts = (self._block.take(size) for size in wanted)
        self._parts_there = device.allocate(wanted[3])
        self._rows_there = device.allocate(wanted[2])

    def run(
        self,
        host: HostBank,
        counters: LayerCounters,
        work: Routing,
        row_of: npt.NDArray[np.int32],
        grouped: GroupedExperts,
        on_device: DeviceWork,
    ) -> None:
        """One layer, merged into work.out. on_device: enqueues the parts of resident experts.

        Shape: row_of int32 [experts], slot or below 0 = the CPU's.
        """
        self._fetch(work)
        on_device()
        if work.beside is not None:
            work.beside()
        self._copied.synchronize()
        (tokens, places), hidden = work.ids.shape, work.x.shape[1]
        pairs = tokens * places
        ids = array_at(self._ids, np.int32, (tokens, places))
        rows = row_of[ids.reshape(-1)]
        self._count(counters, ids, row_of)
        host.will_read(np.unique(ids.reshape(-1)[rows < 0]).tolist())
        x = array_at(self._x, np.float32, (tokens, hidden))
        parts = array_at(self._parts, np.float32, (pairs, hidden))
        compute_pairs(self._kernel, host.bank, x, ids, rows, parts)
        array_at(self._rows, np.int32, (pairs,))[:] = rows
        compute = self._tools.device.compute
        compute.copy_in(self._rows_there.data_ptr(), self._rows, 4 * pairs)
        compute.copy_in(self._parts_there.data_ptr(), self._parts, 4 * pairs * hidden)
        cpu_parts = self._parts_there.view(torch.float32)[: pairs * hidden].view(pairs, hidden)
        grouped.merge(work, cpu_parts, self._rows_there.view(torch.int32)[:pairs])
        compute.record(self._routed)
        # the next layer writes the pinned buffers again
        self._routed.synchronize()

    def close(self) -> None:
        """Give everything back; may be called twice."""
        if self._block.closed:
            return
        self._side.synchronize()
        for memory in (self._parts_there, self._rows_there):
            self._tools.device.release(memory)
        for item in (self._routed, self._copied, self._side, self._block):
            item.close()

    def _fetch(self, work: Routing) -> None:
        """Inputs and routing to the host, beside what is enqueued on the main stream after this."""
        side, compute = self._side, self._tools.device.compute
        compute.record(self._routed)
        side.wait(self._routed)
        side.copy_out(self._x, work.x.data_ptr(), 4 * work.x.numel())
        side.copy_out(self._ids, work.ids.data_ptr(), 4 * work.ids.numel())
        side.record(self._copied)

    def _count(
        self,
        counters: LayerCounters,
        ids: npt.NDArray[np.int32],
        row_of: npt.NDArray[np.int32],
    ) -> None:
        distinct = np.unique(ids)
        hits = int(np.count_nonzero(row_of[distinct] >= 0))
        counters.hits += hits
        counters.misses += distinct.size - hits
        counters.on_cpu += distinct.size - hits

"""Whole layers through two buffers: while one piece computes, the next one's experts are copied.

    copies:   [piece 0][piece 1]    [piece 2]
                      |        \\    ^       \\
    compute:          [  piece 0  ]--[ piece 1 ][ piece 2 ]

Two events for each buffer hold the order: its copies are behind what last computed from it, and
what computes from it is behind its copies. What goes where is planned in policy/stream_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ftengine.experts.counters import LayerCounters
from ftengine.experts.host import HostBank
from ftengine.experts.on_gpu.grouped import GroupedExperts
from ftengine.experts.on_gpu.upload import Upload
from ftengine.experts.policy.mirror import Mirror
from ftengine.experts.policy.stream_plan import Piece, StreamPlan, plan_stream, runs
from ftengine.experts.slots import SlotPool
from ftengine.gpu.moe_layer import Routing
from ftengine.gpu.stream import Event
from ftengine.gpu.tools import GpuTools


class _Buffer:
    """One of the two: its slots are named by the pieces."""

    def __init__(self, tools: GpuTools) -> None:
        driver = tools.device.driver
        self.computed = Event(driver)
        self.started, self.copied = Event(driver, timed=True), Event(driver, timed=True)
        self.num_experts = 0
        """Of the piece that was copied last."""

    def close(self) -> None:
        for event in (self.computed, self.started, self.copied):
            event.close()


class LayerPipe:
    """Active from begin to end, at most one step. Only enqueues, but for begin and end.

    overlaps: False only to measure what the second buffer is worth.
    """

    def __init__(
        self,
        tools: GpuTools,
        hosts: Sequence[HostBank],
        slots: SlotPool,
        counters: Sequence[LayerCounters],
    ) -> None:
        self.overlaps = True
        self._tools = tools
        self._hosts = hosts
        self._slots = slots
        self._counters = counters
        self._buffers = _Buffer(tools), _Buffer(tools)
        self._table = Upload(tools.device)
        self._plan: StreamPlan | None = None
        self._lent: tuple[int, ...] = ()
        self._started: set[int] = set()
        self._holding: dict[int, tuple[int, int]] = {}

    @property
    def active(self) -> bool:
        """Whether this step goes by whole layers."""
        return self._plan is not None

    def begin(self, mirror: Mirror, experts_per_buffer: int) -> None:
        """Borrow two buffers of so many experts and start the first copies.

        0 = what is not resident is left out: a resident model, or the CPU's.
        """
        self._lent = mirror.lend(2 * experts_per_buffer)
        self._plan = plan_stream(mirror, self._lent)
        self._table.send(self._plan.table)
        for buffer in self._buffers:
            self._tools.device.compute.record(buffer.computed)
        self._start(self._plan.layers[0][0])

    def rows_of(self, layer: int) -> npt.NDArray[np.int32]:
        """Slot of each expert that was resident when the step began; below 0 = none."""
        assert self._plan is not None
        experts = self._hosts[layer].bank.num_experts
        rows: npt.NDArray[np.int32] = self._plan.table[self._plan.layers[layer][0].row][:experts]
        return rows

    def run(self, layer: int, work: Routing, grouped: GroupedExperts) -> None:
        """Fill the parts of a layer, piece by piece."""
        assert self._plan is not None
        compute, bank = self._tools.device.compute, self._slots.bank(layer)
        grouped.arrange(work, bank)
        for piece in self._plan.layers[layer]:
            self._start(piece)
            self._start_after(piece)
            buffer = self._buffers[piece.half]
            if piece.places:
                compute.wait(buffer.copied)
                self._holding |= {slot: (layer, expert) for expert, slot in piece.places}
            grouped.compute(work, bank, self._row_of(piece))
            compute.record(buffer.computed)

    def end(self, mirror: Mirror) -> None:
        """Give the buffers back with the experts they still hold. Nothing may be in flight."""
        mirror.give_back(self._lent, self._holding)
        self.forget()

    def forget(self) -> None:
        """Drop all state; after an error the caller empties the tables."""
        self._plan, self._lent = None, ()
        self._started.clear()
        self._holding.clear()

    def seconds(self) -> tuple[int, float]:
        """Experts and seconds of a buffer's last copies; (0, 0) where nothing was copied."""
        for buffer in self._buffers:
            if buffer.num_experts:
                count, buffer.num_experts = buffer.num_experts, 0
                return count, buffer.copied.seconds_since(buffer.started)
        return 0, 0.0

    def close(self) -> None:
        """Give events and memory back; may be called twice."""
        for buffer in self._buffers:
            buffer.close()
        self._table.close()

    def _start_after(self, piece: Piece) -> None:
        """Copies of the next piece, unless it is the last layer's: few rows may be wanted there."""
        assert self._plan is not None
        following = self._plan.after(piece) if self.overlaps else None
        last = len(self._plan.layers) - 1
        if following is not None and (following.layer == piece.layer or following.layer < last):
            self._start(following)

    def _start(self, piece: Piece) -> None:
        """Enqueue a piece's copies behind what last computed from their buffer."""
        if piece.row in self._started or not piece.places:
            return
        self._started.add(piece.row)
        copies, buffer = self._tools.device.copies, self._buffers[piece.half]
        copies.wait(buffer.computed)
        copies.record(buffer.started)
        for _, slot in piece.places:
            self._holding.pop(slot, None)
        for address, source, num_bytes in self._copy_list(piece):
            copies.copy_in(address, source, num_bytes)
        copies.record(buffer.copied)
        buffer.num_experts = len(piece.places)
        counters = self._counters[piece.layer]
        counters.streamed += len(piece.places)
        counters.link_bytes += len(piece.places) * self._hosts[piece.layer].bank.row_bytes

    def _copy_list(self, piece: Piece) -> list[tuple[int, int, int]]:
        """(to, from, bytes) of a piece's copies; neighbours in one where rows fill their slots."""
        bank, stride = self._hosts[piece.layer].bank, self._slots.slot_bytes
        self._hosts[piece.layer].will_read(expert for expert, _ in piece.places)
        items = [(expert, slot, 1) for expert, slot in piece.places]
        if bank.row_bytes == stride:
            items = list(runs(piece.places))
        return [
            (
                self._slots.row(slot, bank.row_bytes).data_ptr(),
                bank.address + expert * bank.row_bytes,
                count * bank.row_bytes,
            )
            for expert, slot, count in items
        ]

    def _row_of(self, piece: Piece) -> torch.Tensor:
        assert self._plan is not None
        width = self._plan.table.shape[1]
        experts = self._hosts[piece.layer].bank.num_experts
        start = piece.row * width
        return self._table.on_device.view(torch.int32)[start : start + experts]

"""Experts of a chunk on the device: pairs grouped there, tiles multiplied, parts in routing order.

Which slots are read is said by a row of a lookup table; how they were filled is pipe.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.gpu.moe_layer import Routing
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton import builds, expert_calls
from ftengine.kernels.triton.expert_calls import Grouping


@dataclass(frozen=True)
class ChunkSizes:
    """A chunk at most: tokens, experts of a token and of a layer, numbers of a row."""

    tokens: int
    places: int
    experts: int
    hidden: int
    inter: int

    @property
    def pairs(self) -> int:
        """(token, place) pairs."""
        return self.tokens * self.places


class GroupedExperts:
    """Work memory of chunks, and the launches over it. One layer at a time."""

    def __init__(self, tools: GpuTools, sizes: ChunkSizes) -> None:
        self.sizes = sizes
        self._tools = tools
        self._memory: list[torch.Tensor] = []
        self._item = torch.float32 if tools.dot == "f32" else torch.bfloat16
        pairs = sizes.pairs
        self._arranged = self._take(self._item, sizes.tokens * sizes.hidden)
        self._inner = self._take(self._item, pairs * sizes.inter)
        self.parts = self._take(torch.float32, pairs * sizes.hidden)
        self._order = self._take(torch.int32, pairs)
        tiles = expert_calls.tiles_of(pairs, sizes.experts)
        self._tiles = self._take(torch.int32, 3 * tiles)
        self._counts = self._take(torch.int32, sizes.experts)
        self._on_device = self._take(torch.int32, pairs)
        """Rows for merge: every pair has one."""
        stream = tools.device.compute
        stream.fill(self._on_device.data_ptr(), 0, 4 * pairs)

    @property
    def total_bytes(self) -> int:
        """Device memory that is taken."""
        return sum(memory.numel() for memory in self._memory)

    def arrange(self, work: Routing, bank: ExpertBank) -> None:
        """Bring a layer's input into the order of its words; once before its pieces."""
        arranged = self._first(self._arranged, work.x.shape)
        self._tools.launch(expert_calls.arrange(work.x, bank.fmt_gate_up, arranged))

    def compute(self, work: Routing, bank: ExpertBank, row_of: torch.Tensor) -> None:
        """Fill the parts of pairs whose expert has a row. Shape: row_of int32 [experts]."""
        tools, (tokens, places) = self._tools, work.ids.shape
        pairs = tokens * places
        tiles = expert_calls.tiles_of(pairs, row_of.numel())
        groups = Grouping(self._order[:pairs], self._tiles[: 3 * tiles].view(tiles, 3))
        counts = self._counts[: row_of.numel()]
        for call in expert_calls.group_on_device(work.ids, row_of, counts, groups):
            tools.launch(call)
        arranged = self._first(self._arranged, work.x.shape)
        inner = self._first(self._inner, (pairs, bank.inter))
        parts = self._first(self.parts, (pairs, bank.hidden))
        dot = tools.dot
        tools.launch(expert_calls.gate_up_gemm(arranged, groups, places, bank, inner, dot))
        tools.launch(expert_calls.down_gemm(inner, groups, bank, parts, dot))

    def merge(
        self,
        work: Routing,
        cpu_parts: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
    ) -> None:
        """Sum every token's parts in routing order; pairs whose row is below 0 from cpu_parts."""
        pairs = work.ids.numel()
        parts = self._first(self.parts, (pairs, work.x.shape[1]))
        self._tools.launch(
            expert_calls.merge(
                parts,
                parts if cpu_parts is None else cpu_parts,
                self._on_device[:pairs] if rows is None else rows,
                work.weights,
                work.out,
                work.accumulate,
            )
        )

    def close(self) -> None:
        """Give the memory back; may be called twice."""
        while self._memory:
            self._tools.device.release(self._memory.pop())

    def _take(self, kind: torch.dtype, count: int) -> torch.Tensor:
        memory = self._tools.device.allocate(max(count, 1) * kind.itemsize)
        self._memory.append(memory)
        return memory.view(kind)

    def _first(self, memory: torch.Tensor, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
        return memory[: shape[0] * shape[1]].view(*shape)


def check_kernels(bank: ExpertBank, dot: str) -> None:
    """Refuse a bank that a kernel is missing for. Raises: EngineError naming format or block."""
    builds.gate_up(bank.fmt_gate_up, bank.activation, bank.fmt_bias)
    builds.down_gemm(bank.fmt_down, dot, bank.fmt_bias)

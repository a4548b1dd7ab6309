"""Latent attention and its indexer on a GPU, at GLM-5's shapes: against the reference, and timed.

A section of gpu_check. Not yet run on a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ftengine.device.cuda import GpuDevice
from ftengine.errors import EngineError
from ftengine.gpu.arena import Arena
from ftengine.gpu.latent import LatentLaunches
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.dispatch import ReferenceKernels
from ftengine.kernels.latent_operands import Chosen, IndexHeads, LatentHeads, LatentWeights, Turn

PAGE = 16
_TOLERANCE = 2e-2
"""Of the largest number of a result: operands of products are rounded to bfloat16."""
_LEAST_OVERLAP = 0.98
"""Of chosen keys: scores near the last chosen one change places by rounding."""
GLM_5 = LatentHeads(count=64, nope_dim=192, rope_dim=64, value_dim=256, kv_rank=512, q_rank=2048)


@dataclass(frozen=True)
class LatentShape:
    """What a section is measured at. chunk: tokens of a piece of a prompt."""

    heads: LatentHeads = GLM_5
    index_heads: int = 32
    index_dim: int = 128
    top_k: int = 2048
    context: int = 8192
    chunk: int = 64
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class Step:
    """The last tokens of one sequence, whose pages stand in order."""

    positions: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    page_table: torch.Tensor

    @classmethod
    def of_last(cls, tokens: int, context: int) -> Step:
        """On the CPU."""
        return cls(
            torch.arange(context - tokens, context, dtype=torch.int32),
            torch.tensor([0, tokens], dtype=torch.int32),
            torch.tensor([context], dtype=torch.int32),
            torch.arange(math.ceil(context / PAGE), dtype=torch.int32)[None],
        )


class Launches(LatentLaunches):
    """Those kernels alone, with memory for one step."""

    def __init__(self, tools: GpuTools, arena: Arena, choice: Chosen) -> None:
        self.tools, self._arena, self._choice = tools, arena, choice

    @property
    def arena(self) -> Arena:
        """What launches work in."""
        return self._arena

    @property
    def choice(self) -> Chosen:
        """Where choices are kept."""
        return self._choice


class _Memory:
    """Copies of host tensors on the device."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._held: list[torch.Tensor] = []

    def put(self, value: torch.Tensor) -> torch.Tensor:
        """The tensor, there."""
        memory = self._device.allocate(value.numel() * value.element_size())
        self._held.append(memory)
        there = memory.view(value.dtype).view(value.shape)
        there.copy_(value)
        return there

    def put_step(self, step: Step) -> Step:
        """Its tensors, there."""
        return Step(*(self.put(item) for item in vars(step).values()))

    def close(self) -> None:
        """Give it back."""
        while self._held:
            self._device.release(self._held.pop())


def latents(
    tools: GpuTools, shape: LatentShape = LatentShape(), repeats: int = 20
) -> Mapping[str, Any]:
    """One token and a chunk over a context: of all keys, and of those that an indexer chooses.

    Raises: EngineError where the GPU's results are not the reference's.
    """
    memory = _Memory(tools.device)
    heads = shape.heads
    width = heads.count * heads.kv_rank
    splits = math.ceil(shape.context / 256)
    most = 2 * shape.chunk * width + splits * (width + 2 * heads.count)
    arena = Arena(tools.device, 4 * max(most, shape.chunk * splits * 256) + (1 << 16))
    try:
        slots = torch.zeros(shape.chunk, shape.top_k, dtype=torch.int32)
        counts = torch.zeros(shape.chunk, dtype=torch.int32)
        choice = Chosen(memory.put(slots), memory.put(counts))
        bench = _Bench(Launches(tools, arena, choice), memory, shape, repeats)
        return {"decode": bench.measure(1), "chunk": bench.measure(shape.chunk)}
    finally:
        tools.device.synchronize()
        arena.close()
        memory.close()


class _Bench:
    """The same random operands on both sides."""

    def __init__(self, mine: Launches, memory: _Memory, shape: LatentShape, repeats: int) -> None:
        self._mine, self._memory, self._shape, self._repeats = mine, memory, shape, repeats
        drawn = torch.Generator().manual_seed(11)
        heads, pages = shape.heads, math.ceil(shape.context / PAGE)

        def randn(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=drawn)

        self._randn = randn
        self._pool = (randn(pages, 1, PAGE, heads.kept) / 4).to(shape.dtype)
        self._keys = randn(pages, 1, PAGE, shape.index_dim).to(shape.dtype)
        key_up = randn(heads.count, heads.nope_dim, heads.kv_rank) / 8
        value_up = randn(heads.count, heads.kv_rank, heads.value_dim) / 8
        scale = heads.head_dim**-0.5
        self._weights = LatentWeights(torch.ones(heads.kv_rank), 1e-6, key_up, value_up, scale)
        angles = randn(shape.context, heads.rope_dim // 2)
        self._turn = Turn(angles.cos(), angles.sin(), True)
        norm = torch.ones(shape.index_dim), torch.zeros(shape.index_dim)
        factor = (shape.index_heads * shape.index_dim) ** -0.5
        self._index = IndexHeads(
            shape.index_heads, shape.index_dim, shape.top_k, factor, *norm, 1e-6
        )
        put = memory.put
        self._there = (put(self._pool), put(self._keys))
        self._moved = replace(self._weights, key_up=put(key_up), value_up=put(value_up))
        self._turning = Turn(put(self._turn.cos), put(self._turn.sin), True)

    def measure(self, tokens: int) -> dict[str, float]:
        """Errors, the overlap of choices, and microseconds of each."""
        shape, mine, reference = self._shape, self._mine, ReferenceKernels()
        heads = shape.heads
        step = Step.of_last(tokens, shape.context)
        q = self._randn(tokens, heads.count * heads.head_dim)
        index_q = self._randn(tokens, shape.index_heads * shape.index_dim)
        factors = self._randn(tokens, shape.index_heads).abs()
        put, there = self._memory.put, self._memory.put_step(step)
        q_there, index_there, factors_there = put(q), put(index_q), put(factors)
        out = put(torch.zeros(tokens, heads.count * heads.value_dim))
        pool, keys = self._there

        def attend(chosen: Chosen | None) -> None:
            mine.latent_attention(
                q_there, heads, self._moved, self._turning, there, pool, out, chosen
            )

        def choose() -> Chosen:
            return mine.index_choose(
                index_there, factors_there, self._index, self._turning, there, keys
            )

        found = {"all_us": self._microseconds(lambda: attend(None))}
        wanted = torch.empty(out.shape)
        reference.latent_attention(q, heads, self._weights, self._turn, step, self._pool, wanted)
        found["all_error"] = _relative(out.cpu(), wanted)
        found["choose_us"] = self._microseconds(choose)
        chosen = choose()
        self._mine.tools.device.synchronize()
        host = Chosen(chosen.slots.cpu().long(), chosen.counts.cpu())
        theirs = reference.index_choose(index_q, factors, self._index, self._turn, step, self._keys)
        found["overlap"] = _overlap(host.slots, theirs.slots)
        found["chosen_us"] = self._microseconds(lambda: attend(chosen))
        reference.latent_attention(
            q, heads, self._weights, self._turn, step, self._pool, wanted, host
        )
        found["chosen_error"] = _relative(out.cpu(), wanted)
        # a result that is no number is no agreement
        close = all(found[name] <= _TOLERANCE for name in ("all_error", "chosen_error"))
        if not close or found["overlap"] < _LEAST_OVERLAP:
            raise EngineError(f"latent attention of {tokens} tokens: {found}")
        return found

    def _microseconds(self, run: Callable[[], object]) -> float:
        device = self._mine.tools.device
        run()
        device.synchronize()
        begun = time.perf_counter()
        for _ in range(self._repeats):
            run()
        device.synchronize()
        return (time.perf_counter() - begun) / self._repeats * 1e6


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def _overlap(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The share of chosen keys that both chose."""
    same = sum(len(set(a) & set(b)) for a, b in zip(mine.tolist(), theirs.tolist(), strict=True))
    return same / mine.numel()

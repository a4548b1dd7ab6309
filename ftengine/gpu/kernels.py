"""GpuKernels: every call of a layer as Triton launches on the device's compute stream.

Nothing here waits: results are there for whatever the stream does next. Few tokens take the
decoding forms, which read a matrix once per token; more take the grouped products. Meanings and
shapes: kernels/native.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ftengine.gpu.arena import Arena
from ftengine.gpu.latent import LatentLaunches
from ftengine.gpu.rows import RowLaunches
from ftengine.gpu.states import GpuStates
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.latent_operands import Chosen
from ftengine.kernels.operands import ExpertBank, HeadLayout, KvScales, PackedWeight, RouteSpec
from ftengine.kernels.triton import builds, expert_calls, layer_calls, row_calls
from ftengine.kernels.triton.expert_calls import Grouping
from ftengine.kernels.triton.layer_calls import Attended, KvPages, Rotation

FEW_TOKENS = 16
"""So many tokens at most take the decoding form of a product."""
_STEP = builds.GEMM_ROWS


def whole_tiles(tokens: int) -> int:
    """Rows that the grouped products write for so many tokens."""
    return -(-tokens // _STEP) * _STEP


class Constants:
    """Index tensors that never change. Shape: pairs, tiles: see Grouping."""

    def __init__(self, max_tokens: int, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """place: host tensor -> device tensor."""
        rows = whole_tiles(max_tokens)
        tiles = [(0, first, _STEP) for first in range(0, rows, _STEP)]
        self.pairs = place(torch.arange(rows, dtype=torch.int32))
        self.tiles = place(torch.tensor(tiles, dtype=torch.int32))


@dataclass(frozen=True)
class KernelMemory:
    """What kernels work in, on the device. kept, picked: float32, each for a row of every token.

    choice: of keys for every token, where layers choose; int32.
    """

    arena: Arena
    constants: Constants
    kept: torch.Tensor
    picked: torch.Tensor
    choice: Chosen | None = None


class GpuKernels(RowLaunches, LatentLaunches):
    """Kernels. Modules are built with it before its memory is known; work_in comes before a step.

    most_queries: of one sequence in the step, to be set before it; bounds a grid.
    """

    def __init__(self, tools: GpuTools) -> None:
        self.tools = tools
        self.most_queries = 1
        self._memory: KernelMemory | None = None
        self._launch = tools.launch
        self.state_ops = GpuStates(tools.launch, lambda: self._work.arena)
        self._item = torch.bfloat16 if tools.dot == "bf16" else torch.float32

    def work_in(self, memory: KernelMemory) -> None:
        """Use this memory from now on."""
        self._memory = memory

    @property
    def _work(self) -> KernelMemory:
        assert self._memory is not None, "kernels were given no work memory"
        return self._memory

    @property
    def arena(self) -> Arena:
        """What a call works in."""
        return self._work.arena

    @property
    def choice(self) -> Chosen:
        """Where choices of keys are kept."""
        assert self._work.choice is not None, "the kernels were given no memory for choices"
        return self._work.choice

    def linear(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        accumulate: bool = False,
    ) -> torch.Tensor:
        """out (+)= x @ weight^T + bias."""
        self._work.arena.reset()
        if out is None:
            out, accumulate = x.new_empty(x.shape[0], weight.rows), False
        if x.shape[0] > FEW_TOKENS:
            self._gemm(x, weight, out, bias, accumulate)
            return out
        self._launch(layer_calls.linear(x, weight, out, bias, accumulate))
        return out

    def expert_ffn(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        bank: ExpertBank,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
    ) -> torch.Tensor:
        """Weighted sum of each token's experts, all of which lie in the bank's device memory.

        Without `out` the result stays in a buffer until the next such call.
        """
        self._work.arena.reset()
        if out is None:
            out, accumulate = self._work.kept[: x.numel()].view(x.shape), False
        tokens, places = expert_ids.shape
        x = self._packed_rows(x)
        alone = bank.num_experts == 1 and places == 1
        parts = self._work.arena.take(whole_tiles(tokens * places), bank.hidden)
        if alone and tokens > FEW_TOKENS:
            self._mlp_gemm(x, bank, parts)
        else:
            inner = self._work.arena.take(tokens * places, bank.inter)
            self._launch(expert_calls.gate_up(x, expert_ids, bank, inner))
            self._launch(expert_calls.down(inner, expert_ids, bank, parts))
        target = out if out.is_contiguous() else self._work.arena.take(*out.shape)
        here = accumulate and target is out
        self._launch(expert_calls.merge(parts, parts, expert_ids, weights, target, here))
        if target is not out:
            self._launch(row_calls.add_rows(target, out, accumulate=accumulate))
        return out

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Normalise rows."""
        if out is None:
            out = torch.empty_like(x)
        self._launch(layer_calls.rms_norm(x, weight, eps, out, residual))
        return out

    def rope_store(
        self,
        qkv: torch.Tensor,
        heads: HeadLayout,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 1e-6,
        interleaved: bool = False,
        scales: KvScales | None = None,
    ) -> None:
        """Norm and rotate q and k; store k and v in their pages."""
        rotation = Rotation(cos, sin, q_norm, k_norm, eps, interleaved)
        # where pages lie in a table is nothing to this launch: slots say it
        pages = _kv_pages(keys, values, positions, slots, scales)
        self._launch(layer_calls.rope_store(qkv, heads, rotation, positions, slots, pages))

    def attention(
        self,
        qkv: torch.Tensor,
        heads: HeadLayout,
        keys: torch.Tensor,
        values: torch.Tensor,
        query_start: torch.Tensor,
        context_len: torch.Tensor,
        page_table: torch.Tensor,
        scale: float,
        window: int = 0,
        sinks: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        scales: KvScales | None = None,
    ) -> torch.Tensor:
        """Causal attention over paged keys."""
        self._work.arena.reset()
        tokens, width = qkv.shape[0], heads.heads * heads.head_dim
        if out is None:
            out = qkv.new_empty(tokens, width)
        spec = Attended(heads, scale, window, sinks, self.tools.dot)
        pages = _kv_pages(keys, values, context_len, page_table, scales)
        target = out if out.is_contiguous() else self._work.arena.take(tokens, width)
        if tokens == context_len.shape[0]:
            shape = (tokens, heads.heads, pages.num_splits)
            sums, parts = (
                self._work.arena.take(*shape, 2),
                self._work.arena.take(*shape, heads.head_dim),
            )
            self._launch(layer_calls.attention_split(qkv, spec, pages, sums, parts))
            self._launch(layer_calls.attention_merge(spec, pages, sums, parts, target))
        else:
            most = self.most_queries
            self._launch(layer_calls.attention_chunk(qkv, spec, pages, query_start, most, target))
        if target is not out:
            self._launch(row_calls.add_rows(target, out))
        return out

    def embed_rows(
        self,
        table: torch.Tensor,
        fmt: str,
        cols: int,
        ids: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rows of a table in its checkpoint format."""
        if out is None:
            out = torch.empty(ids.shape[0], cols, device=table.device)
        self._launch(row_calls.embed_rows(table, fmt, ids, out))
        return out

    def gather(self, stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Rows by number, valid until the next call.

        Shape: stream float32 [n, width]; rows int64 [r].
        """
        width = stream.shape[1]
        out = self._work.picked[: rows.shape[0] * width].view(-1, width)
        table = stream.view(torch.uint8)
        self._launch(row_calls.embed_rows(table, "f32", rows, out))
        return out

    def route(
        self,
        logits: torch.Tensor,
        spec: RouteSpec,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        bias: torch.Tensor | None = None,
        expert_scale: torch.Tensor | None = None,
    ) -> None:
        """The best experts of each token and their weights."""
        self._work.arena.reset()
        scores = self._packed_rows(logits)
        assert expert_ids.is_contiguous()
        assert weights.is_contiguous()
        self._launch(layer_calls.route(scores, spec, expert_ids, weights, bias, expert_scale))

    def _gemm(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        accumulate: bool,
    ) -> None:
        """The product of many tokens, by way of whole tiles."""
        tokens = x.shape[0]
        arranged = self._arranged(x, weight.fmt)
        found = self._work.arena.take(arranged.shape[0], weight.rows)
        group = self._group(tokens)
        self._launch(layer_calls.linear_gemm(arranged, weight, group, found, self.tools.dot))
        self._launch(row_calls.add_rows(found[:tokens], out, bias, accumulate))

    def _mlp_gemm(self, x: torch.Tensor, bank: ExpertBank, parts: torch.Tensor) -> None:
        """One expert for every token. Shape: parts [whole tiles, hidden], written."""
        dot, group = self.tools.dot, self._group(x.shape[0])
        arranged = self._arranged(x, bank.fmt_gate_up)
        inner = self._work.arena.take(arranged.shape[0], bank.inter, dtype=self._item)
        self._launch(expert_calls.gate_up_gemm(arranged, group, 1, bank, inner, dot))
        self._launch(expert_calls.down_gemm(inner, group, bank, parts, dot))

    def _arranged(self, x: torch.Tensor, fmt: str) -> torch.Tensor:
        """Shape: x [n, cols] -> [whole tiles, cols] in the order of the format's words."""
        x = self._packed_rows(x)
        arranged = self._work.arena.take(whole_tiles(x.shape[0]), x.shape[1], dtype=self._item)
        self._launch(expert_calls.arrange(x, fmt, arranged))
        return arranged

    def _group(self, tokens: int) -> Grouping:
        """Every row, one matrix; the last tile is whole too, its spare rows mean nothing."""
        count = whole_tiles(tokens)
        return Grouping(
            self._work.constants.pairs[:count], self._work.constants.tiles[: count // _STEP]
        )

    def _packed_rows(self, x: torch.Tensor) -> torch.Tensor:
        """The rows one behind the other: themselves, or a copy."""
        if x.is_contiguous():
            return x
        copied = self._work.arena.take(*x.shape)
        self._launch(row_calls.add_rows(x, copied))
        return copied


def _kv_pages(
    keys: torch.Tensor,
    values: torch.Tensor,
    context_len: torch.Tensor,
    page_table: torch.Tensor,
    scales: KvScales | None,
) -> KvPages:
    """As the launches take them."""
    if scales is None:
        return KvPages(keys, values, context_len, page_table)
    return KvPages(keys, values, context_len, page_table, scales.keys, scales.values)

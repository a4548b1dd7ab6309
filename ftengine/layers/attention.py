"""Grouped-query attention over paged keys and values, with what families add to it.

Norms, a window, chunks, sinks and an output gate are settings, not other classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.kernels.dispatch import HeadLayout, Kernels
from ftengine.kernels.reference.paged_rows import attend_chosen
from ftengine.layers.blocks import BlockChoice
from ftengine.layers.context import Reach, StepContext, fitting
from ftengine.layers.linear import Linear
from ftengine.layers.norm import GroupNorm, RmsNorm
from ftengine.layers.rotary import RopeTables
from ftengine.quant.panel_form import PANEL_ROWS


@dataclass(frozen=True)
class HeadNorms:
    """What normalises q and k. Shape: q, k float32 [head_dim]; late
    float32 [1, head_dim].

    q and k: of every head before the rotation. whole: of all heads of q at once, and of k. late:
    the product of both weights where they come after the rotation: the length of a head does not
    change by turning it, so q and k are normalised before and q takes both weights after.
    """

    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    whole: tuple[RmsNorm, ...] = ()
    late: torch.Tensor | None = None


@dataclass(frozen=True)
class Values:
    """What becomes of values before they are kept.

    dim: numbers of a head where they are fewer than a key has, 0 = as many; scale multiplies them;
    norm: of every head.
    """

    dim: int = 0
    scale: float = 1.0
    norm: GroupNorm | None = None


PLAIN_VALUES = Values()


@dataclass(frozen=True)
class Attention:
    """One layer's attention. kv_index: which keys and values of the pool are its own.

    Shape: sinks float32 [num_heads]; temper float32 [positions], a factor of the queries. qkv gives
    q, k, v and, where it has more rows, a gate for every element of the output.
    """

    kv_index: int
    heads: HeadLayout
    qkv: Linear
    out: Linear
    rope: RopeTables
    scale: float
    window: int
    eps: float
    norms: HeadNorms
    sinks: torch.Tensor | None
    interleaved: bool
    kernels: Kernels
    chunk: int = 0
    clip: float = 0.0
    temper: torch.Tensor | None = None
    values: Values = PLAIN_VALUES
    blocks: BlockChoice | None = None

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Attend and add the result to `out`.

        Shape: normed [n, hidden]; out the same or, of the wanted rows alone, [r, hidden].
        """
        keys = context.pool.keys[self.kv_index]
        values = context.pool.values[self.kv_index]
        scales = context.pool.scales[self.kv_index]
        some = out.shape[0] < normed.shape[0]
        wide = self._projected(normed, context, some)
        qkv = self._with_values(wide, context.buffers.qkv)
        self._before_rotation(qkv)
        self.kernels.rope_store(
            qkv,
            self.heads,
            self.rope.cos,
            self.rope.sin,
            context.positions,
            context.slots,
            keys,
            values,
            q_norm=self.norms.q,
            k_norm=self.norms.k,
            eps=self.eps,
            interleaved=self.interleaved,
            scales=scales,
        )
        self._after_rotation(qkv, context.positions)
        if some:
            wide, qkv = context.only_wanted(wide), context.only_wanted(qkv)
            context = context.of_wanted()
        if out.shape[0]:
            self._attend(wide, qkv, out, context)

    def _projected(self, normed: torch.Tensor, context: StepContext, some: bool) -> torch.Tensor:
        """Queries, keys, values and gates; `some`: queries of the wanted rows alone.

        Shape: [n, rows of qkv].
        """
        wide = fitting(context.buffers.qkv, self.qkv.rows)
        width = self.heads.heads * self.heads.head_dim
        if not some or width % PANEL_ROWS:
            return self.qkv.apply(normed, wide)
        self.qkv.between(width, self.qkv.rows).apply(normed, wide[:, width:])
        if context.wanted is not None and context.wanted.shape[0]:
            few = context.only_wanted(normed)
            queries = self.qkv.between(0, width).apply(few, few.new_empty(few.shape[0], width))
            wide[context.wanted, :width] = queries
        return wide

    def _attend(
        self, wide: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, context: StepContext
    ) -> None:
        """What comes once keys and values are kept. Shape: all [rows of out, ...]."""
        keys = context.pool.keys[self.kv_index]
        values = context.pool.values[self.kv_index]
        scales = context.pool.scales[self.kv_index]
        attended = fitting(context.buffers.attended, self.heads.heads * self.heads.head_dim)
        attended = attended[: out.shape[0]]
        reach = _reach(context, self.chunk)
        self.kernels.attention(
            qkv,
            self.heads,
            keys,
            values,
            reach.query_start,
            reach.context_len,
            reach.page_table,
            self.scale,
            window=self.window,
            sinks=self.sinks,
            out=attended,
            scales=scales,
        )
        if self.blocks is not None:
            self._attend_blocks(self.blocks, wide, attended, context)
        elif wide.shape[1] > self.heads.qkv_cols:
            gate = wide[:, self.heads.qkv_cols :]
            self.kernels.gate_rows(attended, gate, attended, "sigmoid")
        if self.values.dim:
            heads, dim = self.heads, self.values.dim
            cut = attended[:, : heads.heads * dim]
            attended = self.kernels.move_heads(attended, cut, heads.heads, heads.head_dim, dim)
        self.out.add_to(attended, out)

    def _attend_blocks(
        self, blocks: BlockChoice, wide: torch.Tensor, attended: torch.Tensor, context: StepContext
    ) -> None:
        """Again for the tokens that do not see everything."""
        found = blocks.choose(wide[:, self.heads.qkv_cols :], context)
        if found is None:
            return
        rows, slots = found
        width = self.heads.heads * self.heads.head_dim
        q = wide[rows, :width].view(-1, self.heads.heads, self.heads.head_dim)
        keys, values = context.pool.keys[self.kv_index], context.pool.values[self.kv_index]
        attended[rows] = attend_chosen(q, keys, values, slots, self.scale).flatten(1)

    def _with_values(self, wide: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """q, k and v side by side, v as it is kept: as long as keys, with zeros where it ends.

        Shape: wide [n, rows of qkv], which is the first part of buffer.
        """
        heads, dim = self.heads, self.values.dim
        kept = (heads.heads + heads.kv_heads) * heads.head_dim
        qkv = fitting(buffer if dim else wide, heads.qkv_cols)
        if dim:
            assert wide.shape[1] == kept + heads.kv_heads * dim, "a gate behind short values"
            values = wide[:, kept:]
            self.kernels.move_heads(values, qkv[:, kept:], heads.kv_heads, dim, heads.head_dim)
        if self.values.norm is not None:
            self.values.norm.apply(qkv[:, kept:], qkv[:, kept:])
        if self.values.scale != 1.0:
            self.kernels.add_rows(qkv[:, kept:], qkv[:, kept:], self.values.scale, accumulate=False)
        return qkv

    def _before_rotation(self, qkv: torch.Tensor) -> None:
        """Norms over all heads, then the bound of q, k and v."""
        at = 0
        for norm in self.norms.whole:
            part = qkv[:, at : at + norm.weight.shape[0]]
            norm.apply(part, part)
            at += norm.weight.shape[0]
        if self.clip:
            self.kernels.squash_rows(qkv, qkv, "clamp", self.clip)

    def _after_rotation(self, qkv: torch.Tensor, positions: torch.Tensor) -> None:
        """What queries are multiplied by."""
        if self.norms.late is None and self.temper is None:
            return
        queries = qkv[:, : self.heads.heads * self.heads.head_dim]
        if self.norms.late is not None:
            self.kernels.gate_rows(queries, self.norms.late, queries)
        if self.temper is not None:
            self.kernels.gate_rows(queries, self.temper[:, None], queries, index=positions)


def _reach(context: StepContext, chunk: int) -> Reach:
    """All of a sequence's past; or, in chunks, each chunk as a sequence of its own."""
    if not chunk or int(context.context_len.max()) <= chunk:
        return Reach(context.query_start, context.context_len, context.page_table)
    starts, lengths, pages = [0], [], []
    bounds = context.query_start.tolist()
    for row, end in enumerate(context.context_len.tolist()):
        at = end - (bounds[row + 1] - bounds[row])
        while at < end:
            first = at // chunk * chunk
            stop = min(end, first + chunk)
            starts.append(starts[-1] + stop - at)
            lengths.append(stop - first)
            kept = context.page_table[row, first // PAGE_TOKENS :]
            pages.append(torch.nn.functional.pad(kept, (0, first // PAGE_TOKENS)))
            at = stop
    return Reach(
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.stack(pages),
    )

"""What one forward pass needs, passed explicitly, and the buffers it works in.

The buffers are made once for the largest step; a step of n tokens sees the first n rows of each.
The views are kept per n, so that a decode step makes no tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ftengine.cache.kv_pool import KvPool
from ftengine.cache.state_pool import StatePool
from ftengine.device.torch_device import unwritten
from ftengine.kernels.state_operands import SpanIndex, StateRows
from ftengine.models.widths import BufferShape


@dataclass(frozen=True)
class StepBuffers:
    """Work memory of one step, reused by every layer.

    Shape: float32, rows = tokens. stream [n, hidden] is the residual stream; normed [n, hidden];
    qkv and attended [n, as wide as the widest mixer needs]; branch [n, hidden] or [n, 0];
    router_logits [n, experts]; expert_ids int32 and expert_weights [n, slots]; rooms
    [number, all rows of the largest step, hidden].
    """

    stream: torch.Tensor
    normed: torch.Tensor
    qkv: torch.Tensor
    attended: torch.Tensor
    branch: torch.Tensor
    router_logits: torch.Tensor
    expert_ids: torch.Tensor
    expert_weights: torch.Tensor
    rooms: torch.Tensor

    def room(self, number: int, rows: int, width: int = 0) -> torch.Tensor:
        """One of the buffers that feed-forwards take as they like; width 0 = the stream's.

        Shape: [rows, width], contiguous.
        """
        width = width or self.normed.shape[1]
        room = self.rooms[number].view(-1)
        assert rows * width <= room.numel(), f"no room for {rows} rows of {width}"
        return room[: rows * width].view(rows, width)

    def first(self, num_tokens: int) -> StepBuffers:
        """The first rows of each buffer, as views."""
        found = {name: buffer[:num_tokens] for name, buffer in self.__dict__.items()}
        return StepBuffers(**{**found, "rooms": self.rooms})


@dataclass(frozen=True)
class Reach:
    """Which keys queries may see, as the kernel takes it. Shape: as StepContext has them."""

    query_start: torch.Tensor
    context_len: torch.Tensor
    page_table: torch.Tensor


Gather = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows and their numbers -> those rows, valid until the next step."""


class Workspace:
    """Owner of the buffers. One step at a time. place: host tensor -> where it is to lie."""

    def __init__(
        self,
        shape: BufferShape,
        max_tokens: int,
        place: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        self.max_tokens = max_tokens
        made = StepBuffers(
            stream=unwritten(max_tokens, shape.streams * shape.hidden),
            normed=unwritten(max_tokens, shape.hidden),
            qkv=unwritten(max_tokens, shape.qkv),
            attended=unwritten(max_tokens, shape.attention),
            branch=unwritten(max_tokens, shape.branch),
            router_logits=torch.zeros(max_tokens, max(shape.experts, 1)),
            expert_ids=torch.zeros(max_tokens, max(shape.slots, 1), dtype=torch.int32),
            expert_weights=torch.ones(max_tokens, max(shape.slots, 1)),
            rooms=unwritten(shape.rooms, max_tokens, shape.hidden),
        )
        self._all = StepBuffers(**{name: place(item) for name, item in made.__dict__.items()})
        self._views: dict[int, StepBuffers] = {}

    def views(self, num_tokens: int) -> StepBuffers:
        """Buffers of exactly `num_tokens` rows."""
        found = self._views.get(num_tokens)
        if found is None:
            assert num_tokens <= self.max_tokens, f"{num_tokens} > {self.max_tokens} tokens"
            found = self._views[num_tokens] = self._all.first(num_tokens)
        return found


def fitting(buffer: torch.Tensor, width: int) -> torch.Tensor:
    """The first `width` columns of a buffer: itself where it is no wider."""
    return buffer if buffer.shape[1] == width else buffer[:, :width]


@dataclass(frozen=True)
class Span:
    """New tokens of one sequence. rows: where they stand in the step; slot: of its state.

    keep: the slot that a copy of the state after them goes to, -1 = none. A sequence has several
    spans, one after the other, where its state is wanted in between.
    """

    rows: slice
    slot: int
    keep: int = -1


@dataclass(frozen=True)
class StepContext:
    """One forward pass over the new tokens of several sequences, sequence after sequence.

    Shape: positions int32 [n]; slots int64 [n] (page * 16 + place); query_start int32 [s + 1];
    context_len int32 [s], new tokens included; page_table int32 [s, max_pages].
    token_ids: int64 [n]. wanted: rows whose logits are asked for, int64 [r]; None = every row.
    spans and states: for layers that keep a state; the slot of a sequence at its first token has
    been cleared. span_index: the spans once more, for kernels. gather: rows of a tensor by number,
    where torch's own indexing is not to do it. reach: of the wanted rows alone, each the last of
    its sequence, where the last mixer may be spared the others.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    page_table: torch.Tensor
    wanted: torch.Tensor | None
    pool: KvPool
    buffers: StepBuffers
    states: StatePool | None = None
    spans: tuple[Span, ...] = ()
    token_ids: torch.Tensor | None = None
    gather: Gather | None = None
    span_index: SpanIndex | None = None
    reach: Reach | None = None

    def only_wanted(self, stream: torch.Tensor) -> torch.Tensor:
        """The wanted rows of the stream. Shape: [n, width] -> [r, width]."""
        if self.wanted is None:
            return stream
        if self.gather is not None and self.wanted.shape[0]:
            return self.gather(stream, self.wanted)
        return stream[self.wanted]

    def of_wanted(self) -> StepContext:
        """The same step as if it were of the wanted rows alone."""
        assert self.wanted is not None
        assert self.reach is not None
        return replace(
            self,
            positions=self.positions[self.wanted],
            query_start=self.reach.query_start,
            context_len=self.reach.context_len,
            page_table=self.reach.page_table,
            wanted=None,
        )

    def of_rows(self, values: torch.Tensor, count: int) -> torch.Tensor:
        """`values` of every token of the step, cut to the wanted rows where `count` is theirs."""
        if self.wanted is None or values.shape[0] == count:
            return values
        return values[self.wanted]

    def states_of(self, layer: int) -> tuple[StateRows, SpanIndex]:
        """The states of a recurrent layer, counted among these, and the spans of the step."""
        assert self.states is not None, "the model's recurrent layers were given no states"
        assert self.span_index is not None
        return self.states.layer_rows(layer), self.span_index

    def state(self, layer: int, span: Span) -> tuple[torch.Tensor, ...]:
        """The state of a recurrent layer, counted among these, for one sequence."""
        assert self.states is not None, "the model's recurrent layers were given no states"
        return self.states.parts(layer, span.slot)

    def keep(self, layer: int, span: Span) -> None:
        """To be called when a recurrent layer has gone through a span."""
        if span.keep >= 0 and self.states is not None:
            self.states.keep(layer, span.slot, span.keep)

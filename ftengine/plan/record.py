"""Records one decode step: which native calls it makes, and which pieces must stay in Python.

A piece is the embedding, a half layer or the last norm. It is covered when all it computes are
native calls on buffers that stay where they are: torch is watched while it runs, and anything but a
view leaves the piece to Python. So a block that is new here is never replayed wrongly. What replays
a record: replay.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ftengine.experts.counters import LayerCounters
from ftengine.experts.cpu import CountedCpuExperts
from ftengine.kernels.native import NativeKernels, TapedCall
from ftengine.layers.attention import Attention
from ftengine.layers.context import StepContext
from ftengine.layers.delta import GatedDelta
from ftengine.layers.embedding import Embedding
from ftengine.layers.mlp import Mlp
from ftengine.layers.moe import Moe
from ftengine.layers.short_conv import ShortConv
from ftengine.models.decoder import Decoder, Residual, Step

_ASKING = {"__get__", "__len__", "data_ptr", "dim", "element_size", "is_contiguous", "numel"}
_HARMLESS = _ASKING | {"size", "stride", "view"}
"""Functions of tensors that compute nothing: they ask, or make a view."""
_PLAIN_INDEX = (int, slice, type(None), type(...))

Run = Callable[[torch.Tensor, StepContext], object]


@dataclass(frozen=True)
class Routed:
    """Experts per token of one layer, and its counters."""

    slots: int
    counters: LayerCounters


@dataclass(frozen=True)
class Piece:
    """One part of a step. routed: what its routed experts are counted by, None without any."""

    name: str
    run: Run
    may_cover: bool
    routed: Routed | None = None


@dataclass(frozen=True)
class Recorded:
    """A piece and the calls it made; calls None: it was not covered."""

    piece: Piece
    calls: tuple[TapedCall, ...] | None


class Watch(TorchFunctionMode):
    """Whether torch was asked for anything but views, or for numbers that Python may act on.

    allowed_lists: how often expert ids may be read, which is done to count them.
    """

    def __init__(self, allowed_lists: int) -> None:
        super().__init__()
        self._lists = allowed_lists
        self.computed = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the function and let it work."""
        if not self._is_harmless(func.__name__, args):
            self.computed = True
        return func(*args, **(kwargs or {}))

    def _is_harmless(self, name: str, args: Any) -> bool:
        if name == "__getitem__":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            return all(isinstance(item, _PLAIN_INDEX) for item in index)
        if name == "tolist":
            self._lists -= 1
            return self._lists >= 0
        # flatten: of what is contiguous, before it is listed
        return name in _HARMLESS or (name == "flatten" and args[0].is_contiguous())


def record(
    decoder: Decoder, kernels: NativeKernels, token_ids: torch.Tensor, context: StepContext
) -> list[Recorded]:
    """Compute a step of which every row is wanted, piece by piece, noting the calls."""
    found = []
    for piece in _pieces(decoder):
        watch = Watch(allowed_lists=0 if piece.routed is None else 1)
        kernels.tape = []
        try:
            with watch:
                piece.run(token_ids, context)
            calls = tuple(kernels.tape)
        finally:
            kernels.tape = None
        covered = piece.may_cover and not watch.computed
        found.append(Recorded(piece, calls if covered else None))
    return found


def _pieces(decoder: Decoder) -> Iterator[Piece]:
    """As Decoder.forward, where every row is wanted."""

    def embed(token_ids: torch.Tensor, context: StepContext) -> None:
        stream = context.buffers.stream
        decoder.embedding.apply(token_ids[: stream.shape[0]], stream)
        decoder.embedding_norm.apply(stream, stream)

    def finish(_: torch.Tensor, context: StepContext) -> None:
        decoder.norm.apply(context.buffers.stream, context.buffers.normed)

    yield Piece("embedding", embed, type(decoder.embedding) is Embedding)
    for index, layer in enumerate(decoder.layers):
        for name, step in (("mixer", layer.mixer), ("feed-forward", layer.feed_forward)):
            may_cover, routed = _what_it_is(step)
            yield Piece(f"{name} {index}", _half_layer(step), may_cover, routed)
    yield Piece("norm", finish, may_cover=True)


def _half_layer(step: Step) -> Run:
    def run(_: torch.Tensor, context: StepContext) -> None:
        step.add_to_stream(context.buffers.stream, context.buffers.normed, context)

    return run


def _what_it_is(step: Step) -> tuple[bool, Routed | None]:
    """Whether Python does nothing in this half layer that torch would not show."""
    if type(step) is not Residual:
        return False, None
    block = step.block
    if type(block) is Moe:
        experts = block.experts
        if type(experts) is CountedCpuExperts and experts.host.readahead is None:
            return True, Routed(block.router.num_experts_per_tok, experts.counters)
        return False, None
    return type(block) in (Attention, Mlp, GatedDelta, ShortConv), None

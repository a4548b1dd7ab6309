"""A model that was built in host memory, moved to a GPU: weights, tables, constants, not experts.

What no GPU kernel computes is refused here, at load, with the block's name: never a wrong path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ftengine.errors import EngineError
from ftengine.experts.cpu import CpuExperts
from ftengine.gpu.kernels import FEW_TOKENS, whole_tiles
from ftengine.gpu.latent import SLICE_TOKENS, narrowed
from ftengine.gpu.placer import Placer
from ftengine.kernels.dispatch import EMBED_FORMATS, HeadLayout, PackedWeight
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton.builds import FORMATS
from ftengine.kernels.triton.layer_calls import SPLIT_TOKENS
from ftengine.layers.attention import Attention
from ftengine.layers.context import StepContext
from ftengine.layers.delta import GatedDelta
from ftengine.layers.embedding import Embedding
from ftengine.layers.indexer import Indexer
from ftengine.layers.latent import LatentAttention
from ftengine.layers.linear import Linear, LinearPart, TiledLinear
from ftengine.layers.mamba2 import Mamba2
from ftengine.layers.mlp import Mlp
from ftengine.layers.moe import Moe
from ftengine.layers.norm import GroupNorm, LayerNorm, NoNorm, RmsNorm
from ftengine.layers.router import Router
from ftengine.layers.short_conv import ShortConv
from ftengine.models.decoder import (
    Carried,
    Decoder,
    DecoderLayer,
    NoStep,
    Parallel,
    Residual,
    Step,
)
from ftengine.models.twins import Scaled, Twins
from ftengine.quant import format_named

COMPUTED = (
    Attention,
    Carried,
    CpuExperts,
    Embedding,
    GatedDelta,
    GroupNorm,
    Indexer,
    LatentAttention,
    LayerNorm,
    Linear,
    LinearPart,
    Mamba2,
    Mlp,
    Moe,
    NoNorm,
    Parallel,
    Residual,
    RmsNorm,
    Router,
    Scaled,
    ShortConv,
    TiledLinear,
    Twins,
)
"""Modules whose arithmetic runs on a GPU: kernels, with torch between them in some settings."""
_COLUMNS_STEP = 16
_ALIGN_BYTES = 512


@dataclass(frozen=True)
class Needs:
    """Most of each kind of work memory that one call takes. Units: float32 numbers.

    per_latent: of a token whose heads look at latents; chosen: keys that an indexer chooses for
    each token, 0 = none does.
    """

    per_token: int
    per_head_row: int
    per_split: int
    per_latent: int = 0
    chosen: int = 0

    def arena_bytes(self, step_tokens: int, head_rows: int, sequences: int, context: int) -> int:
        """Bytes that fit every call of a step."""
        tokens = whole_tiles(max(step_tokens, FEW_TOKENS))
        splits = -(-context // SPLIT_TOKENS)
        sliced = max(sequences, SLICE_TOKENS)
        most = max(
            tokens * self.per_token,
            whole_tiles(head_rows) * self.per_head_row,
            sequences * splits * self.per_split + sliced * self.per_latent,
            sliced * splits * SPLIT_TOKENS if self.chosen else 0,
        )
        return 4 * most + (1 << 16)


def check_runs_on_gpu(decoder: Decoder, family: str) -> None:
    """Raises: EngineError("kernel_missing") naming family and block."""
    for value in _parts(decoder):
        reason = _missing(value)
        if reason:
            raise EngineError(
                f"the family {family} needs {reason}, which no GPU kernel computes yet; it runs on "
                f"the CPU: --device cpu",
                code="kernel_missing",
            )


def needs_of(decoder: Decoder) -> Needs:
    """Work memory by the shapes of all operands; the head is read few rows at a time."""
    per_token, per_split, per_latent, chosen = 2 * decoder.buffer_shape.hidden, 0, 0, 0
    head = {id(part.weight) for part in decoder.head.parts}
    for value in _parts(decoder):
        if isinstance(value, PackedWeight) and id(value) not in head:
            per_token = max(per_token, 2 * value.cols + value.rows)
        elif isinstance(value, ExpertBank):
            per_token = max(per_token, 4 * value.hidden + value.inter)
        elif isinstance(value, HeadLayout):
            per_split = max(per_split, value.heads * (value.head_dim + 2))
            per_token = max(per_token, value.heads * value.head_dim)
        elif isinstance(value, Router):
            per_token = max(per_token, value.num_experts)
        elif isinstance(value, LatentAttention):
            width = value.heads.count * value.heads.kv_rank
            per_latent = max(per_latent, 2 * width)
            per_split = max(per_split, width + 2 * value.heads.count)
        elif isinstance(value, Indexer):
            chosen = max(chosen, value.choice.top_k)
        elif isinstance(value, GatedDelta):
            per_token = max(per_token, value.conv.shape[1] + value.heads.value_width)
        elif isinstance(value, Mamba2):
            per_token = max(per_token, value.conv.shape[1])
    rows = max(2 * part.weight.cols + part.weight.rows for part in decoder.head.parts)
    return Needs(per_token, rows, per_split, per_latent, chosen)


def bytes_of_layers(decoder: Decoder) -> tuple[list[int], int]:
    """Bytes of each layer's tensors, and of all others, as a placer rounds them."""
    layers = [_tensor_bytes(layer) for layer in decoder.layers]
    outside = (decoder.embedding, decoder.norm, decoder.head, decoder.embedding_norm)
    return layers, sum(_tensor_bytes(part) for part in outside)


def move_to_gpu(decoder: Decoder, placer: Placer, wide: str) -> Decoder:
    """The same decoder on the device; a table in a format that no kernel gathers becomes `wide`."""
    mover = _Mover(placer)
    embedding = decoder.embedding
    if isinstance(embedding, Embedding):
        embedding = mover.moved(_gatherable(embedding, wide), -1)
    layers = []
    for index, layer in enumerate(decoder.layers):
        found: DecoderLayer = mover.moved(layer, index)
        if placer.streams:
            found = DecoderLayer(_Entering(placer, index, found.mixer), found.feed_forward)
        layers.append(found)
    return dataclasses.replace(
        decoder,
        embedding=embedding,
        layers=tuple(layers),
        norm=mover.moved(decoder.norm, -1),
        head=mover.moved(decoder.head, -1),
        embedding_norm=mover.moved(decoder.embedding_norm, -1),
        last_mixer=None,
    )


@dataclass(frozen=True)
class _Entering:
    """The first half of a layer whose weights come and go."""

    placer: Placer
    layer: int
    step: Step

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """As Step.add_to_stream, once the weights are there."""
        self.placer.enter(self.layer)
        self.step.add_to_stream(stream, normed, context)


class _Mover:
    """Copies trees of frozen dataclasses; what several of them share is placed once."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._done: dict[int, tuple[object, Any]] = {}

    def moved(self, value: Any, layer: int) -> Any:
        """The value with every tensor on the device; anything else as it is."""
        found = self._done.get(id(value))
        if found is not None and not self._placer.streams:
            return found[1]
        result = self._moved(value, layer)
        if result is not value:
            self._done[id(value)] = (value, result)  # keeps value, so that its id stays its own
        return result

    def _moved(self, value: Any, layer: int) -> Any:
        if isinstance(value, torch.Tensor):
            return self._placer.place(layer, value)
        if isinstance(value, tuple):
            items = [self.moved(item, layer) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else tuple(items)
        if not _is_tree(value):
            return value
        value = _as_placed(value)
        changed = {
            name: new for name, old in _fields(value) if (new := self.moved(old, layer)) is not old
        }
        return dataclasses.replace(value, **changed) if changed else value


def _as_placed(value: Any) -> Any:
    """The module as it goes to the device: matrices of heads may be narrower there."""
    if isinstance(value, LatentAttention):
        key_up, value_up = narrowed(value.key_up), narrowed(value.value_up)
        return dataclasses.replace(value, key_up=key_up, value_up=value_up)
    return value


def _is_tree(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Fields that make up a module; routed experts are their store's."""
    for item in dataclasses.fields(value):
        if item.init and not (isinstance(value, Moe) and item.name == "experts"):
            yield item.name, getattr(value, item.name)


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return -(-value.numel() * value.element_size() // _ALIGN_BYTES) * _ALIGN_BYTES
    if isinstance(value, tuple):
        return sum(_tensor_bytes(item) for item in value)
    if not _is_tree(value):
        return 0
    return sum(_tensor_bytes(item) for _, item in _fields(_as_placed(value)))


def _parts(value: Any) -> Iterator[Any]:
    """A tree's dataclasses, itself included."""
    if isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
    elif _is_tree(value):
        yield value
        for _, item in _fields(value):
            yield from _parts(item)
    elif hasattr(value, "add_to_stream") or hasattr(value, "add_to"):
        yield value


def _missing(value: Any) -> str:
    """What of this module no GPU kernel computes; empty where all is well."""
    name = type(value).__name__
    check = _CHECKS.get(type(value))
    if check is not None:
        return check(value)
    if isinstance(value, (*COMPUTED, Decoder, DecoderLayer, NoStep)):
        return ""
    acts = any(hasattr(value, does) for does in ("add_to", "add_to_stream", "apply", "choose"))
    return f"the block {name}" if acts else ""


def _check_weight(weight: PackedWeight) -> str:
    if weight.cols % _COLUMNS_STEP:
        return f"matrices of {weight.cols} columns (multiples of {_COLUMNS_STEP} are built)"
    return "" if weight.fmt in FORMATS else f"weights in the format {weight.fmt}"


def _check_bank(bank: ExpertBank) -> str:
    missing = [fmt for fmt in (bank.fmt_gate_up, bank.fmt_down) if fmt not in FORMATS]
    return f"weights in the format {missing[0]}" if missing else ""


def _check_attention(block: Attention) -> str:
    return "the block BlockChoice (block-sparse attention)" if block.blocks is not None else ""


_CHECKS: dict[type, Callable[[Any], str]] = {
    PackedWeight: _check_weight,
    ExpertBank: _check_bank,
    Attention: _check_attention,
}


def _gatherable(embedding: Embedding, wide: str) -> Embedding:
    if embedding.fmt in EMBED_FORMATS:
        return embedding
    values = format_named(embedding.fmt).dequantize(embedding.table.numpy())
    rows = format_named(wide).quantize(np.ascontiguousarray(values))
    return dataclasses.replace(embedding, table=torch.from_numpy(rows), fmt=wide)

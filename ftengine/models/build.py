"""ModelConfig + weights -> Decoder. Where weights come from is the loader's business (Weights)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.cache.kv_pool import KvShape
from ftengine.errors import LoadError
from ftengine.experts.cpu import CpuExperts
from ftengine.experts.host import ExpertStore, Readahead
from ftengine.kernels.dispatch import ExpertBank, HeadLayout, Kernels, PackedWeight
from ftengine.layers.attention import Attention
from ftengine.layers.context import BufferShape
from ftengine.layers.embedding import Embedding
from ftengine.layers.linear import Linear, LinearPart
from ftengine.layers.mlp import Mlp
from ftengine.layers.moe import Moe
from ftengine.layers.norm import RmsNorm
from ftengine.layers.rotary import RopeScaling, RopeTables, make_tables
from ftengine.layers.router import Router
from ftengine.models.decoder import Decoder, DecoderLayer
from ftengine.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelConfig, MoeSpec, RopeSpec


class Weights(Protocol):
    """Source of a model's weights, by our names. Raises: LoadError for a missing or odd one."""

    def vector(self, name: str) -> torch.Tensor:
        """Shape: float32 [n]."""

    def has(self, name: str) -> bool:
        """Whether the model holds a tensor of this name."""

    def table(self, name: str) -> tuple[torch.Tensor, str]:
        """Rows as stored, and their format. Shape: uint8 [rows, row_bytes]."""

    def packed(self, names: Sequence[str]) -> list[PackedWeight]:
        """Matrices one below the other, neighbours of one format joined."""

    def dense_bank(self, gate: str, up: str, down: str) -> ExpertBank:
        """A dense MLP as a bank of one expert."""

    def bank(self, name: str) -> ExpertBank:
        """All experts of one layer."""

    def readahead(self, name: str) -> Readahead | None:
        """How to ask for a bank's rows ahead of time; None where they are in memory."""


@dataclass(frozen=True)
class BuildLimits:
    """Units: tokens of one sequence; tokens of one step."""

    context_tokens: int
    step_tokens: int


class Builder:
    """Builds one decoder; shares rope tables and the constants of dense MLPs between layers.

    Every MoE layer's bank goes to `store`, in layer order.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: Kernels,
        limits: BuildLimits,
        store: ExpertStore,
    ) -> None:
        self._config = config
        self._weights = weights
        self._kernels = kernels
        self._limits = limits
        self._store = store
        self._tables: dict[RopeSpec, RopeTables] = {}
        self._ids = torch.zeros(limits.step_tokens, 1, dtype=torch.int32)
        self._ones = torch.ones(limits.step_tokens, 1)

    def decoder(self) -> Decoder:
        """Read every weight and put the model together. Raises: LoadError."""
        config = self._config
        table, fmt = self._weights.table("embed")
        layers = tuple(self._layer(index, spec) for index, spec in enumerate(config.layers))
        return Decoder(
            embedding=Embedding(
                table, fmt, config.hidden_size, config.embedding_scale, self._kernels
            ),
            layers=layers,
            norm=self._norm("norm"),
            head=self._linear("embed" if config.tied_head else "head"),
            buffer_shape=buffer_shape(config),
        )

    def _layer(self, index: int, spec: LayerSpec) -> DecoderLayer:
        prefix = f"layers.{index}."
        return DecoderLayer(
            attention_norm=self._norm(prefix + "attn_norm"),
            attention=self._attention(index, prefix + "attn.", spec.attention),
            feed_forward_norm=self._norm(prefix + "ffn_norm"),
            feed_forward=self._feed_forward(prefix, spec.feed_forward),
        )

    def _attention(self, index: int, prefix: str, spec: AttentionSpec) -> Attention:
        if spec.rope is None:
            raise LoadError(f"layer {index} has no rotary embedding; that is not built yet")
        weights = self._weights
        return Attention(
            layer_idx=index,
            heads=HeadLayout(spec.num_heads, spec.num_kv_heads, spec.head_dim),
            qkv=self._linear(prefix + "q", prefix + "k", prefix + "v"),
            out=self._linear(prefix + "o"),
            rope=self._rope(spec.rope),
            scale=spec.scale,
            window=spec.window,
            eps=self._config.norm_eps,
            q_norm=weights.vector(prefix + "q_norm") if spec.qk_norm else None,
            k_norm=weights.vector(prefix + "k_norm") if spec.qk_norm else None,
            sinks=weights.vector(prefix + "sinks") if spec.sinks else None,
            interleaved=spec.rope.style == "interleaved",
            kernels=self._kernels,
        )

    def _feed_forward(self, prefix: str, spec: MlpSpec | MoeSpec) -> Mlp | Moe:
        if spec.activation != "silu":
            raise LoadError(f"activation {spec.activation!r} is not built yet; built: silu")
        if isinstance(spec, MlpSpec):
            return self._mlp(prefix + "mlp.", spec)
        router = Router(
            linear=self._linear(prefix + "router"),
            num_experts=spec.router.num_experts,
            num_experts_per_tok=spec.router.num_experts_per_tok,
            score=spec.router.score,
            normalize=spec.router.normalize,
            scale=spec.router.scale,
        )
        name = prefix + "experts"
        bank = self._weights.bank(name)
        return Moe(router, self._store.add_layer(bank, self._weights.readahead(name)))

    def _mlp(self, prefix: str, spec: MlpSpec) -> Mlp:
        if spec.bias:
            raise LoadError(f"{prefix}* has biases; dense MLPs with biases are not built yet")
        bank = self._weights.dense_bank(prefix + "gate", prefix + "up", prefix + "down")
        return Mlp(CpuExperts(bank, self._kernels), self._ids, self._ones)

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._weights.vector(name), self._config.norm_eps, self._kernels)

    def _linear(self, *names: str) -> Linear:
        bias = self._bias(names)
        parts: list[LinearPart] = []
        first = 0
        for weight in self._weights.packed(names):
            own = None if bias is None else bias[first : first + weight.rows].contiguous()
            parts.append(LinearPart(weight, first, own))
            first += weight.rows
        return Linear(tuple(parts), self._kernels)

    def _bias(self, names: Sequence[str]) -> torch.Tensor | None:
        having = [name for name in names if self._weights.has(name + ".bias")]
        if not having:
            return None
        if len(having) != len(names):
            raise LoadError(f"only {', '.join(having)} of {', '.join(names)} have a bias")
        return torch.cat([self._weights.vector(name + ".bias") for name in names])

    def _rope(self, spec: RopeSpec) -> RopeTables:
        if spec not in self._tables:
            scaling = RopeScaling(spec.dims, spec.theta, spec.scaling, spec.factors)
            self._tables[spec] = make_tables(scaling, self._limits.context_tokens)
        return self._tables[spec]


def kv_shapes(config: ModelConfig) -> list[KvShape]:
    """Keys and values of each layer."""
    return [
        KvShape(layer.attention.num_kv_heads, layer.attention.head_dim) for layer in config.layers
    ]


def buffer_shape(config: ModelConfig) -> BufferShape:
    """Widths of the work buffers that fit every layer.

    Raises: LoadError where layers differ in a way the buffers do not allow.
    """
    shapes = {_layer_buffers(config.hidden_size, layer) for layer in config.layers}
    widths = {(shape.qkv, shape.attention) for shape in shapes}
    routed = {(shape.experts, shape.slots) for shape in shapes if shape.experts}
    if len(widths) != 1 or len(routed) > 1:
        raise LoadError("layers of different attention or routing sizes are not built yet")
    qkv, attention = widths.pop()
    experts, slots = routed.pop() if routed else (0, 0)
    return BufferShape(config.hidden_size, qkv, attention, experts, slots)


def _layer_buffers(hidden: int, layer: LayerSpec) -> BufferShape:
    attention = layer.attention
    width = attention.num_heads * attention.head_dim
    qkv = width + 2 * attention.num_kv_heads * attention.head_dim
    if isinstance(layer.feed_forward, MoeSpec):
        router = layer.feed_forward.router
        return BufferShape(hidden, qkv, width, router.num_experts, router.num_experts_per_tok)
    return BufferShape(hidden, qkv, width, 0, 0)

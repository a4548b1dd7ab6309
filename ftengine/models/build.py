"""ModelConfig + weights -> Decoder. Where weights come from is the loader's business (Weights)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.cache.kv_pool import KvShape
from ftengine.cache.state_pool import StateShapes
from ftengine.errors import LoadError
from ftengine.experts.cpu import CpuExperts
from ftengine.experts.host import ExpertStore
from ftengine.kernels.dispatch import Kernels
from ftengine.layers.context import BufferShape
from ftengine.layers.embedding import Embedding
from ftengine.layers.mlp import Mlp
from ftengine.layers.moe import Moe
from ftengine.layers.router import Router
from ftengine.models.decoder import Block, Decoder, DecoderLayer, Residual
from ftengine.models.materials import Materials, Weights
from ftengine.models.mixers import MixerBuilder
from ftengine.models.spec import (
    AttentionSpec,
    DeltaSpec,
    LayerSpec,
    Mamba2Spec,
    MixerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)
from ftengine.models.weight_names import RowPick


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
        self._from = Materials(config, weights, kernels)
        self._mixers = MixerBuilder(config, self._from, limits.context_tokens)
        self._store = store
        self._ids = torch.zeros(limits.step_tokens, 1, dtype=torch.int32)
        self._ones = torch.ones(limits.step_tokens, 1)

    def decoder(self) -> Decoder:
        """Read every weight and put the model together. Raises: LoadError."""
        config = self._config
        table, fmt = self._weights.table("embed")
        layers = tuple(self._layer(index, spec) for index, spec in enumerate(config.layers))
        return Decoder(
            embedding=Embedding(
                table, fmt, config.hidden_size, config.embedding_scale, self._from.kernels
            ),
            layers=layers,
            norm=self._from.norm("norm"),
            head=self._from.linear("embed" if config.tied_head else "head"),
            buffer_shape=buffer_shape(config),
            logit_scale=config.logit_scale,
            logit_softcap=config.logit_softcap,
        )

    def _layer(self, index: int, spec: LayerSpec) -> DecoderLayer:
        name = f"layers.{index}"
        mixer = self._mixers.build(name, spec.mixer)
        return DecoderLayer(
            self._residual(name + ".attn", mixer, spec),
            self._residual(name + ".ffn", self._feed_forward(name + ".", spec.feed_forward), spec),
        )

    def _residual(self, name: str, block: Block, spec: LayerSpec) -> Residual:
        post = self._from.norm(name + "_post_norm") if spec.post_norms else None
        return Residual(self._from.norm(name + "_norm"), block, post, self._config.residual_scale)

    def _feed_forward(self, prefix: str, spec: MlpSpec | MoeSpec) -> Mlp | Moe:
        if isinstance(spec, MlpSpec):
            return self._mlp(prefix, spec)
        router = self._router(prefix + "router", spec.router)
        name = prefix + "experts"
        bank = self._weights.bank(name, spec.activation)
        shared = None
        if spec.shared is not None:
            gate = prefix + "shared_gate" if spec.shared_gate else ""
            shared = self._mlp(prefix, spec.shared, gate)
        experts = self._store.add_layer(bank, self._weights.readahead(name))
        return Moe(router, experts, shared)

    def _router(self, name: str, spec: RouterSpec) -> Router:
        correction = self._weights.vector(name + ".correction") if spec.correction else None
        return Router(
            linear=self._from.linear(name),
            num_experts=spec.num_experts,
            num_experts_per_tok=spec.num_experts_per_tok,
            score=spec.score,
            normalize=spec.normalize,
            scale=spec.scale,
            correction=correction,
            epsilon=spec.epsilon,
        )

    def _mlp(self, prefix: str, spec: MlpSpec, gate: str = "") -> Mlp:
        stem = prefix + spec.stem
        if spec.bias:
            raise LoadError(f"{stem}.* has biases; dense MLPs with biases are not built yet")
        first, second = RowPick(stem + ".gate"), RowPick(stem + ".up")
        if spec.fused:
            width, both = spec.intermediate_size, stem + ".gate_up"
            first, second = (RowPick(both, 1, at, at + width) for at in (0, width))
        bank = self._weights.dense_bank(first, second, RowPick(stem + ".down"), spec.activation)
        experts = CpuExperts(bank, self._from.kernels)
        return Mlp(experts, self._ids, self._ones, self._from.linear(gate) if gate else None)


def kv_shapes(config: ModelConfig) -> list[KvShape]:
    """Keys and values of each layer that attends."""
    return [KvShape(spec.num_kv_heads, spec.head_dim) for spec in config.attention_specs]


def state_shapes(config: ModelConfig) -> list[StateShapes]:
    """States of each layer that keeps one."""
    shapes = (layer.mixer.state_shapes for layer in config.layers)
    return [shape for shape in shapes if shape]


def buffer_shape(config: ModelConfig) -> BufferShape:
    """Widths of the work buffers that fit every layer.

    Raises: LoadError where layers differ in a way the buffers do not allow.
    """
    widths = [_mixer_widths(layer.mixer) for layer in config.layers]
    routed = {(moe.router.num_experts, moe.router.num_experts_per_tok) for moe in config.moe_specs}
    if len(routed) > 1:
        raise LoadError("layers of different routing sizes are not built yet")
    experts, slots = routed.pop() if routed else (0, 0)
    branched = config.residual_scale != 1.0 or any(layer.post_norms for layer in config.layers)
    shared = any(moe.shared is not None for moe in config.moe_specs)
    recurrent = max((width for width, _, kept in widths if not kept), default=0)
    return BufferShape(
        hidden=config.hidden_size,
        qkv=max(width for width, _, _ in widths),
        attention=max(width for _, width, _ in widths),
        experts=experts,
        slots=slots,
        branch=config.hidden_size if branched else 0,
        scratch=4 * recurrent + (config.hidden_size if shared else 0),
    )


def _mixer_widths(spec: MixerSpec) -> tuple[int, int, bool]:
    """(first projection, input of the last one, whether it works in the buffers alone)."""
    if isinstance(spec, AttentionSpec):
        width = spec.num_heads * spec.head_dim
        gate = width if spec.gate else 0
        return width + spec.kv_elements_per_token + gate, width, True
    if isinstance(spec, DeltaSpec):
        width = spec.conv_width + spec.value_width + 2 * spec.num_value_heads
        return width, spec.value_width, False
    if isinstance(spec, Mamba2Spec):
        return spec.in_width, spec.width, False
    return 3 * spec.width, spec.width, False

"""ModelConfig + weights -> Decoder. Where weights come from is the loader's business (Weights)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.cache.kv_pool import KvShape
from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.cache.state_pool import StateShapes
from ftengine.errors import LoadError
from ftengine.experts.cpu import CpuExperts
from ftengine.experts.host import ExpertStore
from ftengine.kernels.dispatch import Kernels
from ftengine.layers.attention import Attention
from ftengine.layers.embedding import Embedding
from ftengine.layers.mlp import Mlp
from ftengine.layers.moe import Latent, Moe
from ftengine.layers.norm import NoNorm, Norm
from ftengine.layers.router import Router, RouterGroups
from ftengine.models.decoder import (
    Block,
    Carried,
    Decoder,
    DecoderLayer,
    Embed,
    NoStep,
    Parallel,
    Residual,
    Step,
)
from ftengine.models.materials import Materials, Weights
from ftengine.models.mixers import MixerBuilder
from ftengine.models.spec import (
    FeedForwardSpec,
    LateSpec,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    NoBlock,
    RouterSpec,
    StreamsSpec,
    TwinSpec,
)
from ftengine.models.streams import HyperStep, MixWeights, StreamsEmbedding, StreamsNorm
from ftengine.models.twins import Late, LeftOver, Scaled, TakingLate, Twins
from ftengine.models.weight_names import RowPick
from ftengine.models.widths import buffer_shape


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
        self._left = LeftOver()
        self._ids = torch.zeros(limits.step_tokens, 1, dtype=torch.int32)
        self._ones = torch.ones(limits.step_tokens, 1)
        self._gates = torch.zeros(limits.step_tokens, 1)

    def decoder(self) -> Decoder:
        """Read every weight and put the model together. Raises: LoadError."""
        config = self._config
        table, fmt = self._weights.table("embed")
        layers = tuple(self._layer(index, spec) for index, spec in enumerate(config.layers))
        embedding: Embed = Embedding(
            table, fmt, config.hidden_size, config.embedding_scale, self._from.kernels
        )
        norm: Norm = self._from.norm("norm")
        if config.streams is not None:
            embedding = StreamsEmbedding(embedding, config.hidden_size, config.streams.count)
            norm = StreamsNorm(norm, self._mix("hc_head", config.streams))
        return Decoder(
            embedding=embedding,
            layers=layers,
            norm=norm,
            head=self._from.linear("embed" if config.tied_head else "head"),
            buffer_shape=buffer_shape(config),
            logit_scale=config.logit_scale,
            logit_softcap=config.logit_softcap,
            embedding_norm=self._from.embedding_norm(),
            last_mixer=_sparing(layers[-1].mixer),
        )

    def _layer(self, index: int, spec: LayerSpec) -> DecoderLayer:
        name = f"layers.{index}"
        mixer = self._mixers.build(name, spec.mixer)
        block = self._feed_forward(name + ".", spec.feed_forward)
        if spec.parallel and mixer is not None and block is not None:
            return DecoderLayer(self._step(name + ".attn", Parallel(mixer, block), spec), NoStep())
        first, second = spec.carries
        feed_forward = self._step(name + ".ffn", block, spec, second)
        if spec.takes_late:
            feed_forward = TakingLate(feed_forward, self._left)
        if spec.scaled:
            scale = float(self._weights.vector(name + ".scale"))
            feed_forward = Scaled(feed_forward, scale, self._from.kernels)
        return DecoderLayer(self._step(name + ".attn", mixer, spec, first), feed_forward)

    def _step(self, name: str, block: Block | None, spec: LayerSpec, carry: float = 0.0) -> Step:
        if block is None:
            return NoStep()
        kernels = self._from.kernels
        inside = not spec.pre_norms or isinstance(block, Twins)
        norm: Norm = NoNorm(kernels) if inside else self._from.norm(name + "_norm")
        if self._config.streams is not None:
            iterations = self._config.streams.iterations
            return HyperStep(norm, block, self._mix(name + "_hc", self._config.streams), iterations)
        if carry:
            return Carried(norm, block, carry, kernels)
        post = self._from.norm(name + "_post_norm") if spec.post_norms else None
        return Residual(norm, block, kernels, post, self._config.residual_scale)

    def _mix(self, name: str, spec: StreamsSpec) -> MixWeights:
        return MixWeights(
            fn=self._weights.matrix(name + ".fn").double(),
            base=self._weights.vector(name + ".base").double(),
            scale=self._weights.vector(name + ".scale").double(),
            count=spec.count,
            norm_eps=self._config.norm_eps,
            eps=spec.eps,
        )

    def _feed_forward(self, prefix: str, spec: FeedForwardSpec) -> Block | None:
        if isinstance(spec, NoBlock):
            return None
        if isinstance(spec, MlpSpec):
            return self._mlp(prefix, spec)
        if isinstance(spec, TwinSpec):
            return self._twins(prefix, spec)
        return self._moe(prefix, spec)

    def _twins(self, prefix: str, spec: TwinSpec) -> Block:
        mlp, moe = self._mlp(prefix, spec.mlp), self._moe(prefix, spec.moe)
        if isinstance(spec, LateSpec):
            self._left = LeftOver()
            return Late(mlp, moe, self._left)
        norms = ("ffn_norm", "ffn_post_norm_1", "ffn_norm_2", "ffn_post_norm_2")
        found = (self._from.norm(prefix + name) for name in norms)
        return Twins(mlp, moe, self._from.kernels, *found)

    def _moe(self, prefix: str, spec: MoeSpec) -> Moe:
        router = self._router(prefix + "router", spec.router)
        name = prefix + "experts"
        bank = self._weights.bank(name, spec.activation)
        shared = None
        if spec.shared is not None:
            gate = prefix + "shared_gate" if spec.shared_gate else ""
            shared = self._mlp(prefix, spec.shared, gate, spec.shared_scale)
        experts = self._store.add_layer(bank, self._weights.readahead(name))
        first = spec.router.num_experts if spec.router.identities else 0
        latent = None
        if spec.latent:
            down, up = (self._from.linear(f"{prefix}latent.{part}") for part in ("down", "up"))
            latent = Latent(down, up)
        return Moe(router, experts, shared, first, spec.weigh_input, latent)

    def _router(self, name: str, spec: RouterSpec) -> Router:
        correction = self._weights.vector(name + ".correction") if spec.correction else None
        return Router(
            linear=self._from.linear(name),
            num_experts=spec.num_choices,
            num_experts_per_tok=spec.num_experts_per_tok,
            score=spec.score,
            normalize=spec.normalize,
            scale=spec.scale,
            correction=correction,
            epsilon=spec.epsilon,
            groups=RouterGroups(spec.groups, spec.kept_groups, spec.group_by),
            input_norm=self._from.router_norm(name) if spec.input_norm else None,
            table=self._weights.matrix(name + ".table").long() if spec.table else None,
            expert_scale=self._weights.vector(name + ".expert_scale")
            if spec.expert_scale
            else None,
            jitter=spec.jitter,
        )

    def _mlp(self, prefix: str, spec: MlpSpec, gate: str = "", scale: float = 1.0) -> Mlp:
        stem = prefix + spec.stem
        if spec.bias:
            raise LoadError(f"{stem}.* has biases; dense MLPs with biases are not built yet")
        second = RowPick(stem + ".up")
        first = RowPick(stem + ".gate") if spec.activation.gated else None
        if spec.fused:
            width, both = spec.intermediate_size, stem + ".gate_up"
            first, second = (RowPick(both, 1, at, at + width) for at in (0, width))
        bank = self._weights.dense_bank(first, second, RowPick(stem + ".down"), spec.activation)
        experts = CpuExperts(bank, self._from.kernels)
        if gate:
            return Mlp(experts, self._ids, self._gates, self._from.linear(gate))
        weights = self._ones if scale == 1.0 else self._ones * scale
        return Mlp(experts, self._ids, weights)


def _sparing(mixer: Step) -> Residual | None:
    """The mixer if it can add to the wanted rows alone."""
    if not isinstance(mixer, Residual) or not isinstance(mixer.block, Attention):
        return None
    return mixer if mixer.block.blocks is None else None


def kv_shapes(config: ModelConfig) -> list[KvShape]:
    """What goes to pages, mixer after mixer."""
    shapes = (shape for layer in config.layers for shape in layer.mixer.kv_shapes)
    return [
        KvShape(
            item.num_heads,
            item.key_dim,
            item.value_dim,
            max(1, PAGE_TOKENS // item.tokens_per_row),
            item.quantizable,
        )
        for item in shapes
    ]


def state_shapes(config: ModelConfig) -> list[StateShapes]:
    """States of each layer that keeps one."""
    shapes = (layer.mixer.state_shapes for layer in config.layers)
    return [shape for shape in shapes if shape]

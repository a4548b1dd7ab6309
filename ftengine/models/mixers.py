"""Mixer specs + weights -> mixer modules. The rest of a layer is build.py's business."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from ftengine.errors import LoadError
from ftengine.kernels.dispatch import HeadLayout, Kernels
from ftengine.kernels.latent_operands import LatentHeads
from ftengine.kernels.state_operands import DeltaHeads
from ftengine.layers.attention import Attention, HeadNorms, Values
from ftengine.layers.blocks import BlockChoice
from ftengine.layers.delta import GatedDelta
from ftengine.layers.indexer import Choice, Indexer
from ftengine.layers.latent import LatentAttention
from ftengine.layers.linear import TiledLinear
from ftengine.layers.mamba2 import Mamba2
from ftengine.layers.norm import GroupNorm, Norm, RmsNorm
from ftengine.layers.rotary import RopeScaling, RopeTables, make_tables
from ftengine.layers.short_conv import ShortConv
from ftengine.models.compressed import CompressedParts, build_compressed
from ftengine.models.decoder import Block
from ftengine.models.materials import Materials
from ftengine.models.scan_specs import KdaSpec, LightningSpec, Mamba1Spec
from ftengine.models.scans import build_scan
from ftengine.models.spec import (
    AttentionSpec,
    CompressedSpec,
    DeltaSpec,
    LatentSpec,
    Mamba2Spec,
    MixerSpec,
    ModelConfig,
    NoBlock,
    RopeSpec,
    ShortConvSpec,
)
from ftengine.models.weight_names import RowPick

_UNIT_EPS = 1e-6
"""Added to the squared length of q and k in Gated DeltaNet."""
_LATENT_EPS = 1e-6
"""Of the norms of latents, whatever the model's own is."""


class MixerBuilder:
    """Builds the mixers in layer order; counts which keys and states are whose."""

    def __init__(self, config: ModelConfig, materials: Materials, max_positions: int) -> None:
        self._config = config
        self._from = materials
        self._max_positions = max_positions
        self._tables: dict[RopeSpec | None, RopeTables] = {}
        self._num_kv = 0
        self._num_states = 0
        self._choice: Choice | None = None

    @property
    def _kernels(self) -> Kernels:
        return self._from.kernels

    def build(self, layer: str, spec: MixerSpec) -> Block | None:
        """The mixer of the layer called `layer`, None where it has none. Raises: LoadError."""
        if isinstance(spec, NoBlock):
            return None
        if isinstance(spec, AttentionSpec):
            return self._attention(layer + ".attn.", spec)
        if isinstance(spec, CompressedSpec):
            parts = CompressedParts(
                layer + ".csa.",
                self._from,
                self._rope(spec.rope),
                self._next_kv,
                self._next_state,
            )
            return build_compressed(parts, spec)
        if isinstance(spec, LatentSpec):
            return self._latent(layer, spec)
        if isinstance(spec, KdaSpec | Mamba1Spec | LightningSpec):
            return build_scan(self._from, layer, spec, self._next_state())
        if isinstance(spec, DeltaSpec):
            return self._delta(layer + ".delta.", spec)
        if isinstance(spec, Mamba2Spec):
            return self._mamba2(layer + ".mamba.", spec)
        return self._short_conv(layer + ".conv.", spec)

    def _attention(self, prefix: str, spec: AttentionSpec) -> Attention:
        kv_index = self._next_kv()
        return Attention(
            kv_index=kv_index,
            heads=HeadLayout(spec.num_heads, spec.num_kv_heads, spec.head_dim),
            qkv=self._from.linear(*_attention_picks(prefix, spec)),
            out=self._from.linear(prefix + "o"),
            rope=self._rope(spec.rope),
            scale=spec.scale,
            window=spec.window,
            eps=self._config.norm_eps,
            norms=self._head_norms(prefix, spec),
            sinks=self._from.vector(prefix + "sinks") if spec.sinks else None,
            interleaved=spec.rope is not None and spec.rope.style == "interleaved",
            kernels=self._kernels,
            chunk=spec.chunk,
            clip=spec.clip,
            temper=self._temper(spec.temper, first=1),
            values=self._values(spec),
            blocks=self._blocks(prefix, spec),
        )

    def _blocks(self, prefix: str, spec: AttentionSpec) -> BlockChoice | None:
        if spec.blocks is None:
            return None
        eps = self._config.norm_eps
        q, k = (self._from.norm_weight(f"{prefix}index_{name}_norm") for name in "qk")
        return BlockChoice(
            kv_index=self._next_kv(),
            num_heads=spec.blocks.num_heads,
            head_dim=spec.blocks.head_dim,
            size=spec.blocks.size,
            top_blocks=spec.blocks.top_blocks,
            local=spec.blocks.local,
            q_norm=RmsNorm(q, eps, self._kernels),
            k_norm=RmsNorm(k, eps, self._kernels),
            rope=self._rope(spec.rope),
        )

    def _values(self, spec: AttentionSpec) -> Values:
        norm = None
        if spec.values.norm:
            ones = torch.ones(spec.num_kv_heads * spec.head_dim)
            norm = GroupNorm(ones, spec.num_kv_heads, self._config.norm_eps, self._kernels)
        return Values(spec.values.dim, spec.values.scale, norm)

    def _head_norms(self, prefix: str, spec: AttentionSpec) -> HeadNorms:
        """Norms of q and k, by where they happen."""
        if not spec.qk_norm:
            return HeadNorms()
        ones = torch.ones(spec.head_dim)
        if spec.norm.free:
            return HeadNorms(ones, ones)
        q, k = (self._from.norm_weight(f"{prefix}{name}_norm") for name in "qk")
        if spec.norm.whole:
            eps = self._config.norm_eps
            return HeadNorms(whole=tuple(RmsNorm(w, eps, self._kernels) for w in (q, k)))
        if spec.norm.late:
            return HeadNorms(ones, ones, late=(q * k)[None])
        return HeadNorms(q, k)

    def _latent(self, layer: str, spec: LatentSpec) -> LatentAttention:
        prefix = layer + ".mla."
        heads = LatentHeads(
            spec.num_heads,
            spec.nope_dim,
            spec.rope_dim,
            spec.value_dim,
            spec.kv_rank,
            spec.q_rank,
        )
        kv_index = self._next_kv()
        indexer = self._indexer(layer + ".index.", spec)
        key_up, value_up = self._latent_ups(prefix, spec)
        return LatentAttention(
            kv_index=kv_index,
            heads=heads,
            project=self._from.linear(*_latent_parts(layer, spec)),
            q_norm=self._latent_norm(prefix + "q_a_norm", spec.q_gain) if spec.q_rank else None,
            q_up=self._from.linear(prefix + "q_b") if spec.q_rank else None,
            kv_norm=self._latent_norm(prefix + "kv_a_norm", spec.kv_gain),
            key_up=key_up.contiguous(),
            value_up=value_up.transpose(1, 2).contiguous(),
            out=self._from.linear(prefix + "o"),
            rope=self._rope(spec.rope),
            interleaved=spec.rope is not None and spec.rope.style == "interleaved",
            scale=spec.scale,
            temper=self._temper(spec.temper),
            gated=spec.gate,
            indexer=indexer,
            choice=None if spec.indexer is None else self._choice,
            kernels=self._kernels,
        )

    def _latent_ups(self, prefix: str, spec: LatentSpec) -> tuple[torch.Tensor, torch.Tensor]:
        """Shape: float32 [heads, nope_dim, kv_rank] and [heads, value_dim, kv_rank]."""
        matrix, heads, rank = self._from.weights.matrix, spec.num_heads, spec.kv_rank
        if spec.apart:
            keys = matrix(prefix + "k_b").view(heads, rank, spec.nope_dim).transpose(1, 2)
            return keys, matrix(prefix + "v_b").view(heads, spec.value_dim, rank)
        both = matrix(prefix + "kv_b").view(heads, spec.nope_dim + spec.value_dim, rank)
        return both[:, : spec.nope_dim], both[:, spec.nope_dim :]

    def _latent_norm(self, name: str, gain: float) -> RmsNorm:
        return RmsNorm(self._from.vector(name) * gain, _LATENT_EPS, self._kernels)

    def _indexer(self, prefix: str, latent: LatentSpec) -> Indexer | None:
        spec = latent.indexer
        if spec is None or spec.shared:
            return None
        assert latent.rope is not None, "an indexer rotates its keys"
        self._choice = Choice(spec.top_k)
        return Indexer(
            kv_index=self._next_kv(),
            num_heads=spec.num_heads,
            head_dim=spec.head_dim,
            q_up=self._from.linear(prefix + "q"),
            norm_weight=self._from.vector(prefix + "k_norm"),
            norm_bias=self._from.vector(prefix + "k_norm.bias"),
            rope=self._rope(latent.rope),
            interleaved=spec.style == "interleaved",
            choice=self._choice,
        )

    def _temper(self, spec: tuple[float, float] | None, first: int = 0) -> torch.Tensor | None:
        if spec is None:
            return None
        beta, old = spec
        positions = torch.arange(first, self._max_positions + first, dtype=torch.float64)
        steps = torch.floor(positions / old)
        return (1 + beta * torch.log1p(steps)).float()

    def _next_kv(self) -> int:
        self._num_kv += 1
        return self._num_kv - 1

    def _delta(self, prefix: str, spec: DeltaSpec) -> GatedDelta:
        unit = 1 / math.sqrt(spec.key_dim)
        eps = _UNIT_EPS / spec.key_dim
        heads = _value_order(spec)
        channels = torch.arange(spec.conv_width)
        values = channels[-spec.value_width :].view(spec.num_value_heads, spec.value_dim)
        channels[-spec.value_width :] = values[heads].reshape(-1)
        plain = self._from.linear(prefix + "o")
        tiled = TiledLinear(plain, spec.num_key_heads, spec.values_per_key)
        return GatedDelta(
            state_index=self._next_state(),
            heads=DeltaHeads(
                spec.num_key_heads, spec.num_value_heads, spec.key_dim, spec.value_dim
            ),
            project=self._from.linear(*_delta_picks(prefix, spec)),
            conv=self._taps(prefix + "conv", spec.conv_width, spec.kernel)[:, channels],
            decay_rate=self._from.decay_rate(prefix, spec.rates)[heads],
            dt_bias=self._from.vector(prefix + "dt_bias").double()[heads],
            # x / sqrt(sum x^2 + e) is the RMS norm of weight d^-1/2 and eps e / d
            q_norm=RmsNorm(torch.full((spec.key_dim,), unit * unit), eps, self._kernels),
            k_norm=RmsNorm(torch.full((spec.key_dim,), unit), eps, self._kernels),
            norm=self._plain_norm(prefix + "norm"),
            out=tiled if spec.tiled else plain,
            kernels=self._kernels,
        )

    def _mamba2(self, prefix: str, spec: Mamba2Spec) -> Mamba2:
        return Mamba2(
            state_index=self._next_state(),
            num_heads=spec.num_heads,
            head_dim=spec.head_dim,
            num_groups=spec.num_groups,
            state_dim=spec.state_dim,
            dt_limit=spec.dt_limit,
            project=self._from.linear(prefix + "in"),
            conv=self._taps(prefix + "conv", spec.conv_width, spec.kernel),
            conv_bias=self._from.vector(prefix + "conv.bias") if spec.conv_bias else None,
            decay_rate=self._from.decay_rate(prefix, spec.rates),
            dt_bias=self._from.vector(prefix + "dt_bias").double(),
            skip=self._from.vector(prefix + "d"),
            norm=self._mamba_norm(prefix + "norm", spec),
            out=self._from.linear(prefix + "o"),
            kernels=self._kernels,
        )

    def _mamba_norm(self, name: str, spec: Mamba2Spec) -> Norm:
        if spec.norm_groups == 1:
            return self._plain_norm(name)
        weight, eps = self._from.vector(name), self._config.norm_eps
        return GroupNorm(weight, spec.norm_groups, eps, self._kernels)

    def _short_conv(self, prefix: str, spec: ShortConvSpec) -> ShortConv:
        return ShortConv(
            state_index=self._next_state(),
            project=self._from.linear(prefix + "in"),
            conv=self._taps(prefix + "conv", spec.width, spec.kernel),
            conv_bias=self._from.vector(prefix + "conv.bias") if spec.bias else None,
            out=self._from.linear(prefix + "o"),
            kernels=self._kernels,
        )

    def _next_state(self) -> int:
        self._num_states += 1
        return self._num_states - 1

    def _taps(self, name: str, width: int, kernel: int) -> torch.Tensor:
        """Stored [width, 1, kernel], oldest token first. Shape: float32 [kernel, width]."""
        return self._from.vector(name).view(width, kernel).T.contiguous()

    def _plain_norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._from.vector(name), self._config.norm_eps, self._kernels)

    def _rope(self, spec: RopeSpec | None) -> RopeTables:
        if spec not in self._tables:
            self._tables[spec] = self._new_tables(spec)
        return self._tables[spec]

    def _new_tables(self, spec: RopeSpec | None) -> RopeTables:
        if spec is None:  # one pair turned by nothing
            return RopeTables(
                torch.ones(self._max_positions, 1), torch.zeros(self._max_positions, 1)
            )
        if spec.style not in ("half", "interleaved"):
            raise LoadError(f"rope style {spec.style!r} is not built yet")
        scaling = RopeScaling(spec.dims, spec.theta, spec.scaling, spec.factors)
        return make_tables(scaling, self._max_positions)


def _attention_picks(prefix: str, spec: AttentionSpec) -> list[RowPick]:
    """Rows of q, k and v and, where there is one, of the gate, from fused or separate tensors."""
    if spec.fused:
        return [RowPick(prefix + "qkv")]
    heads, dim, q = spec.num_heads, spec.head_dim, prefix + "q"
    value = "k" if spec.values.of_keys else "v"
    picks = [RowPick(q), RowPick(prefix + "k"), RowPick(prefix + value)]
    if spec.blocks is not None:
        picks += [RowPick(prefix + "index_q"), RowPick(prefix + "index_k")]
    if spec.gate_apart:
        picks.append(RowPick(prefix + "gate"))
    elif spec.gate:
        picks[0] = RowPick(q, heads, 0, dim)
        picks.append(RowPick(q, heads, dim, 2 * dim))
    return picks


def _latent_parts(layer: str, spec: LatentSpec) -> list[str]:
    """Everything that is made from the layer's input."""
    parts = ["mla.q_a" if spec.q_rank else "mla.q", "mla.kv_a"]
    if spec.indexer is not None and not spec.indexer.shared:
        parts += ["index.k", "index.weights"]
    if spec.gate:
        parts.append("mla.gate")
    return [f"{layer}.{part}" for part in parts]


def _delta_picks(prefix: str, spec: DeltaSpec) -> list[RowPick]:
    """q, k, v, z, b, a one after the other, from fused or separate tensors.

    Value heads stand by their key heads, whatever the tensors have.
    """
    groups, dim, count = spec.num_key_heads, spec.key_dim, spec.values_per_key
    values = count * spec.value_dim
    if spec.fused:
        ends = [0, dim, 2 * dim, 2 * dim + values, 2 * dim + 2 * values]
        picks = [RowPick(prefix + "qkvz", groups, start, stop) for start, stop in pairwise(ends)]
    elif spec.tiled:
        keys, size = 2 * groups * dim, spec.value_dim
        starts = [keys + head * size for head in _value_order(spec).tolist()]
        picks = [RowPick(prefix + "qkv", 1, 0, keys)]
        picks += [RowPick(prefix + "qkv", 1, start, start + size) for start in starts]
        picks += _in_turns(prefix + "z", spec, size)
    else:
        picks = [RowPick(prefix + "qkv"), RowPick(prefix + "z")]
    if spec.fused_ba:
        return [*picks, *(RowPick(prefix + "ba", groups, at, at + count) for at in (0, count))]
    if spec.tiled:
        return [*picks, *_in_turns(prefix + "b", spec, 1), *_in_turns(prefix + "a", spec, 1)]
    return [*picks, RowPick(prefix + "b"), RowPick(prefix + "a")]


def _in_turns(name: str, spec: DeltaSpec, size: int) -> list[RowPick]:
    """Rows of value heads that run in turns, `size` each, as they stand by their key heads."""
    heads, turns = spec.num_key_heads, spec.values_per_key
    return [RowPick(name, turns, head * size, (head + 1) * size) for head in range(heads)]


def _value_order(spec: DeltaSpec) -> torch.Tensor:
    """The stored number of each value head, in the order in which they stand by their key heads."""
    heads = torch.arange(spec.num_value_heads)
    if not spec.tiled:
        return heads
    return heads.view(spec.values_per_key, spec.num_key_heads).T.reshape(-1)

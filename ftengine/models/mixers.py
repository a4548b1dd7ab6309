"""Mixer specs + weights -> mixer modules. The rest of a layer is build.py's business."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from ftengine.errors import LoadError
from ftengine.kernels.dispatch import HeadLayout, Kernels
from ftengine.layers.attention import Attention
from ftengine.layers.delta import DeltaHeads, GatedDelta
from ftengine.layers.mamba2 import Mamba2
from ftengine.layers.norm import RmsNorm
from ftengine.layers.rotary import RopeScaling, RopeTables, make_tables
from ftengine.layers.short_conv import ShortConv
from ftengine.models.decoder import Block
from ftengine.models.materials import Materials
from ftengine.models.spec import (
    AttentionSpec,
    DeltaSpec,
    Mamba2Spec,
    MixerSpec,
    ModelConfig,
    RopeSpec,
    ShortConvSpec,
)
from ftengine.models.weight_names import RowPick

_UNIT_EPS = 1e-6
"""Added to the squared length of q and k in Gated DeltaNet."""


class MixerBuilder:
    """Builds the mixers in layer order; counts which keys and states are whose."""

    def __init__(self, config: ModelConfig, materials: Materials, max_positions: int) -> None:
        self._config = config
        self._from = materials
        self._max_positions = max_positions
        self._tables: dict[RopeSpec | None, RopeTables] = {}
        self._num_kv = 0
        self._num_states = 0

    @property
    def _kernels(self) -> Kernels:
        return self._from.kernels

    def build(self, layer: str, spec: MixerSpec) -> Block:
        """The mixer of the layer called `layer`. Raises: LoadError."""
        if isinstance(spec, AttentionSpec):
            return self._attention(layer + ".attn.", spec)
        if isinstance(spec, DeltaSpec):
            return self._delta(layer + ".delta.", spec)
        if isinstance(spec, Mamba2Spec):
            return self._mamba2(layer + ".mamba.", spec)
        return self._short_conv(layer + ".conv.", spec)

    def _attention(self, prefix: str, spec: AttentionSpec) -> Attention:
        heads, dim, q = spec.num_heads, spec.head_dim, prefix + "q"
        picks = [RowPick(q), RowPick(prefix + "k"), RowPick(prefix + "v")]
        if spec.gate:
            picks[0] = RowPick(q, heads, 0, dim)
            picks.append(RowPick(q, heads, dim, 2 * dim))
        self._num_kv += 1
        return Attention(
            kv_index=self._num_kv - 1,
            heads=HeadLayout(heads, spec.num_kv_heads, dim),
            qkv=self._from.linear(*picks),
            out=self._from.linear(prefix + "o"),
            rope=self._rope(spec.rope),
            scale=spec.scale,
            window=spec.window,
            eps=self._config.norm_eps,
            q_norm=self._from.norm_weight(prefix + "q_norm") if spec.qk_norm else None,
            k_norm=self._from.norm_weight(prefix + "k_norm") if spec.qk_norm else None,
            sinks=self._from.vector(prefix + "sinks") if spec.sinks else None,
            interleaved=spec.rope is not None and spec.rope.style == "interleaved",
            kernels=self._kernels,
        )

    def _delta(self, prefix: str, spec: DeltaSpec) -> GatedDelta:
        unit = 1 / math.sqrt(spec.key_dim)
        eps = _UNIT_EPS / spec.key_dim
        return GatedDelta(
            state_index=self._next_state(),
            heads=DeltaHeads(
                spec.num_key_heads, spec.num_value_heads, spec.key_dim, spec.value_dim
            ),
            project=self._from.linear(*_delta_picks(prefix, spec)),
            conv=self._taps(prefix + "conv", spec.conv_width, spec.kernel),
            decay_rate=self._from.vector(prefix + "a_log").double().exp(),
            dt_bias=self._from.vector(prefix + "dt_bias").double(),
            # x / sqrt(sum x^2 + e) is the RMS norm of weight d^-1/2 and eps e / d
            q_norm=RmsNorm(torch.full((spec.key_dim,), unit * unit), eps, self._kernels),
            k_norm=RmsNorm(torch.full((spec.key_dim,), unit), eps, self._kernels),
            norm=self._plain_norm(prefix + "norm"),
            out=self._from.linear(prefix + "o"),
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
            decay_rate=self._from.vector(prefix + "a_log").double().exp(),
            dt_bias=self._from.vector(prefix + "dt_bias").double(),
            skip=self._from.vector(prefix + "d"),
            norm=self._plain_norm(prefix + "norm"),
            out=self._from.linear(prefix + "o"),
            kernels=self._kernels,
        )

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


def _delta_picks(prefix: str, spec: DeltaSpec) -> list[RowPick]:
    """q, k, v, z, b, a one after the other, from fused or separate tensors."""
    if not spec.fused:
        return [RowPick(prefix + name) for name in ("qkv", "z", "b", "a")]
    groups, dim, count = spec.num_key_heads, spec.key_dim, spec.values_per_key
    values = count * spec.value_dim
    ends = [0, dim, 2 * dim, 2 * dim + values, 2 * dim + 2 * values]
    wide = [RowPick(prefix + "qkvz", groups, start, stop) for start, stop in pairwise(ends)]
    b, a = (RowPick(prefix + "ba", groups, at, at + count) for at in (0, count))
    return [*wide, b, a]

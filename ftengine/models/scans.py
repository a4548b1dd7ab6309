"""Specs of scan_specs.py + weights -> mixers. mixers.py calls this."""

from __future__ import annotations

import math

import torch

from ftengine.layers.kda import Kda
from ftengine.layers.lightning import Lightning
from ftengine.layers.linear import Linear
from ftengine.layers.mamba1 import Mamba1
from ftengine.layers.norm import RmsNorm
from ftengine.models.decoder import Block
from ftengine.models.materials import Materials
from ftengine.models.scan_specs import KdaSpec, LightningSpec, Mamba1Spec, ScanSpec

_UNIT_EPS = 1e-6
"""Added to the squared length of q and k."""
_LIGHTNING_EPS = 1e-6
"""Of the norm after lightning attention, whatever the model's own is."""


def build_scan(materials: Materials, layer: str, spec: ScanSpec, state_index: int) -> Block:
    """The mixer of the layer called `layer`. Raises: LoadError."""
    if isinstance(spec, KdaSpec):
        return _kda(materials, layer + ".kda.", spec, state_index)
    if isinstance(spec, Mamba1Spec):
        return _mamba1(materials, layer + ".mamba.", spec, state_index)
    return _lightning(materials, layer + ".light.", spec, state_index)


def _kda(materials: Materials, prefix: str, spec: KdaSpec, state_index: int) -> Kda:
    kernels, unit = materials.kernels, 1 / math.sqrt(spec.head_dim)
    eps = _UNIT_EPS / spec.head_dim
    parts = ("f_a", "g_a") if spec.rank else ("f", "g")

    def widen(name: str) -> Linear | None:
        return materials.linear(prefix + name) if spec.rank else None

    taps = [
        materials.vector(f"{prefix}{name}_conv").view(spec.width, spec.kernel).T for name in "qkv"
    ]
    # A_log may be padded behind the heads
    rate = materials.decay_rate(prefix, spec.rates)[: spec.num_heads]
    return Kda(
        state_index=state_index,
        num_heads=spec.num_heads,
        head_dim=spec.head_dim,
        project=materials.linear(*(prefix + name for name in ("q", "k", "v", *parts, "b"))),
        widen_decay=widen("f_b"),
        widen_gate=widen("g_b"),
        conv=torch.cat(taps, dim=1).contiguous(),
        rate=rate[:, None],
        dt_bias=materials.vector(prefix + "dt_bias").double().view(spec.num_heads, -1),
        bound=spec.bound,
        # x / sqrt(sum x^2 + e) is the RMS norm of weight d^-1/2 and eps e / d
        q_norm=RmsNorm(torch.full((spec.head_dim,), unit * unit), eps, kernels),
        k_norm=RmsNorm(torch.full((spec.head_dim,), unit), eps, kernels),
        norm=RmsNorm(materials.vector(prefix + "norm"), materials.config.norm_eps, kernels),
        out=materials.linear(prefix + "o"),
    )


def _mamba1(materials: Materials, prefix: str, spec: Mamba1Spec, state_index: int) -> Mamba1:
    kernels, eps = materials.kernels, materials.config.norm_eps

    def norm(name: str) -> RmsNorm:
        return RmsNorm(materials.vector(f"{prefix}{name}_norm"), eps, kernels)

    rate = materials.decay_rate(prefix, spec.rates)
    return Mamba1(
        state_index=state_index,
        project=materials.linear(prefix + "in"),
        conv=materials.vector(prefix + "conv").view(spec.width, spec.kernel).T.contiguous(),
        conv_bias=materials.vector(prefix + "conv.bias") if spec.conv_bias else None,
        select=materials.linear(prefix + "x"),
        norms=(norm("dt"), norm("b"), norm("c")),
        widen=materials.linear(prefix + "dt"),
        rate=rate.view(spec.width, spec.state_dim),
        skip=materials.vector(prefix + "d"),
        out=materials.linear(prefix + "o"),
    )


def _lightning(
    materials: Materials, prefix: str, spec: LightningSpec, state_index: int
) -> Lightning:
    rates = torch.tensor(spec.rates, dtype=torch.float64)
    norm = materials.vector(prefix + "norm")
    return Lightning(
        state_index=state_index,
        num_heads=spec.num_heads,
        head_dim=spec.head_dim,
        project=materials.linear(prefix + "qkv", prefix + "gate"),
        decay=torch.exp(-rates).float(),
        norm=RmsNorm(norm, _LIGHTNING_EPS, materials.kernels),
        out=materials.linear(prefix + "o"),
    )

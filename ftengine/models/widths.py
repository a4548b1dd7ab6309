"""How wide the work of a model is: elements per token, from its config alone. No torch.

What is allocated by these widths is layers/context.py's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ftengine.errors import LoadError
from ftengine.models.scan_specs import KdaSpec, LightningSpec, Mamba1Spec
from ftengine.models.spec import (
    AttentionSpec,
    CompressedSpec,
    DeltaSpec,
    LatentSpec,
    LayerSpec,
    Mamba2Spec,
    MixerSpec,
    ModelConfig,
    NoBlock,
    TwinSpec,
)

STEP_TOKENS = 512
"""Tokens of a step where nobody says otherwise."""
HEAD_ROWS = 64
"""Rows that get logits at once, at least."""


@dataclass(frozen=True)
class BufferShape:
    """Widths of the work buffers, those of the widest layer. Units: elements per token.

    qkv: what a mixer's first projection gives; attention: what its last one is given. branch: a
    block's output where it does not go straight to the stream, 0 if it always does. scratch: what
    recurrent mixers take beside these, for the memory plan. rooms: buffers as wide as the
    stream that feed-forwards take beside these. streams: residual streams side by side.
    """

    hidden: int
    qkv: int
    attention: int
    experts: int
    slots: int
    branch: int = 0
    scratch: int = 0
    rooms: int = 0
    streams: int = 1


def buffer_shape(config: ModelConfig) -> BufferShape:
    """Widths of the work buffers that fit every layer.

    Raises: LoadError where layers differ in a way the buffers do not allow.
    """
    widths = [_mixer_widths(layer.mixer) for layer in config.layers]
    routed = {(moe.router.num_choices, moe.router.num_experts_per_tok) for moe in config.moe_specs}
    if len(routed) > 1:
        raise LoadError("layers of different routing sizes are not built yet")
    experts, slots = routed.pop() if routed else (0, 0)
    branched = config.residual_scale != 1.0 or any(layer.post_norms for layer in config.layers)
    shared = any(moe.shared is not None for moe in config.moe_specs)
    recurrent = max((width for width, _, kept in widths if not kept), default=0)
    latent = max((_latent_scratch(layer.mixer) for layer in config.layers), default=0)
    return BufferShape(
        hidden=config.hidden_size,
        qkv=max(width for width, _, _ in widths),
        attention=max(width for _, width, _ in widths),
        experts=experts,
        slots=slots,
        branch=config.hidden_size if branched else 0,
        scratch=4 * recurrent
        + latent
        + (config.hidden_size if shared else 0)
        + _streams_width(config),
        rooms=max((_rooms(layer) for layer in config.layers), default=0),
        streams=config.streams.count if config.streams is not None else 1,
    )


def _rooms(layer: LayerSpec) -> int:
    """What of layers/moe.py's and models/twins.py's rooms a layer needs."""
    moe = layer.experts
    if isinstance(layer.feed_forward, TwinSpec):
        return 4
    if moe is None:
        return 0
    return 2 if moe.latent else int(moe.weigh_input or moe.router.input_norm)


def _streams_width(config: ModelConfig) -> int:
    """What several streams and mixing them in float64 take beside one."""
    return 0 if config.streams is None else 6 * config.streams.count * config.hidden_size


def _latent_scratch(spec: MixerSpec) -> int:
    """Queries against latents, once more as attention takes them, and what it gives."""
    return 3 * spec.num_heads * spec.kv_width if isinstance(spec, LatentSpec) else 0


def _mixer_widths(spec: MixerSpec) -> tuple[int, int, bool]:
    """(first projection, input of the last one, whether it works in the buffers alone)."""
    if isinstance(spec, NoBlock):
        return 0, 0, True
    if isinstance(spec, AttentionSpec):
        width = spec.num_heads * spec.head_dim
        gate = width if spec.gate else 0
        gate += spec.blocks.rows if spec.blocks is not None else 0
        return width + 2 * spec.num_kv_heads * spec.head_dim + gate, width, True
    if isinstance(spec, CompressedSpec):
        return compressed_width(spec), 0, False
    if isinstance(spec, LatentSpec):
        width = spec.num_heads * (spec.head_dim + spec.value_dim)
        if spec.indexer is not None:
            width = max(width, spec.indexer.num_heads * spec.indexer.head_dim)
        return latent_width(spec), width, False
    if isinstance(spec, DeltaSpec):
        width = spec.conv_width + spec.value_width + 2 * spec.num_value_heads
        return width, spec.value_width, False
    if isinstance(spec, Mamba2Spec | KdaSpec | Mamba1Spec | LightningSpec):
        return spec.in_width, spec.width, False
    return 3 * spec.width, spec.width, False


def latent_width(spec: LatentSpec) -> int:
    """Rows of everything that is made from the input of a layer with latents."""
    width = (spec.q_rank or spec.num_heads * spec.head_dim) + spec.kv_width
    if spec.indexer is not None and not spec.indexer.shared:
        width += spec.indexer.head_dim + spec.indexer.num_heads
    return width + (spec.num_heads if spec.gate else 0)


def compressed_width(spec: CompressedSpec) -> int:
    """Rows of everything that is made from the layer's input."""
    return sum(rows for _, rows in compressed_products(spec))


def compressed_products(spec: CompressedSpec) -> Iterator[tuple[str, int]]:
    """(name, rows) of what is made from the input of such a layer, in order."""
    yield "q_a", spec.q_rank
    yield "kv", spec.head_dim
    for name, (_, width) in zip(("entry", "index"), spec.pooled, strict=False):
        yield f"{name}_kv", width
        yield f"{name}_gate", width
    if spec.entries is not None and spec.entries.indexer is not None:
        yield "index_weights", spec.entries.indexer.num_heads


def work_bytes(config: ModelConfig, step_tokens: int = STEP_TOKENS, rows: int = HEAD_ROWS) -> int:
    """Memory that steps of so many tokens and logits of so many rows take, at most.

    Raises: LoadError as buffer_shape.
    """
    shape = buffer_shape(config)
    per_token = 2 * shape.hidden + shape.qkv + shape.attention + shape.experts + 2 * shape.slots
    per_token += shape.branch + shape.scratch + shape.rooms * shape.hidden
    inter = max(layer.feed_forward.intermediate_size for layer in config.layers)
    per_token += (shape.slots or 1) * (2 * inter + shape.hidden)
    return 4 * (step_tokens * per_token + rows * config.vocab_size)

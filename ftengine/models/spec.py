"""Architecture as data: what a family's config means, block by block. No torch, no file names.

A family file turns a checkpoint's config into a ModelConfig; build.py turns that into modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one attention block.

    Units: dims = rotated dimensions of a head (<= head_dim). style "half" pairs (j, j + dims/2),
    "interleaved" pairs (2j, 2j+1). scaling "none", "linear", "llama3" or "yarn"; its numbers stand
    in `factors` by the names of the checkpoint's config.
    """

    dims: int
    theta: float
    style: str = "half"
    scaling: str = "none"
    factors: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class AttentionSpec:
    """Grouped-query softmax attention. window 0 = full; the window counts the token itself."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    window: int = 0
    sinks: bool = False


@dataclass(frozen=True)
class MlpSpec:
    """Dense gated MLP."""

    intermediate_size: int
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True)
class RouterSpec:
    """Scores to expert ids and weights.

    score "softmax" or "sigmoid" over all experts before choosing; `normalize` divides the chosen
    weights by their sum; `scale` multiplies them.
    """

    num_experts: int
    num_experts_per_tok: int
    score: str = "softmax"
    normalize: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class MoeSpec:
    """Routed experts, all of one shape."""

    router: RouterSpec
    intermediate_size: int
    activation: str = "silu"


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: pre-norm mixer, pre-norm feed-forward, plain residuals."""

    attention: AttentionSpec
    feed_forward: MlpSpec | MoeSpec


@dataclass(frozen=True)
class ModelConfig:
    """Everything the decoder must know, in the engine's own words.

    Units: context_tokens is the trained context; eos_ids end a generation.
    """

    family: str
    hidden_size: int
    vocab_size: int
    context_tokens: int
    norm_eps: float
    tied_head: bool
    layers: tuple[LayerSpec, ...]
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    embedding_scale: float = 1.0
    notes: tuple[str, ...] = field(default=())

    @property
    def num_experts(self) -> int:
        """Largest number of routed experts in a layer; 0 for a dense model."""
        return max((moe.router.num_experts for moe in self.moe_specs), default=0)

    @property
    def moe_specs(self) -> tuple[MoeSpec, ...]:
        """The MoE blocks, in layer order."""
        blocks = (layer.feed_forward for layer in self.layers)
        return tuple(block for block in blocks if isinstance(block, MoeSpec))

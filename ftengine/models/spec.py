"""Architecture as data: what a family's config means, block by block. No torch, no file names.

A family file turns a checkpoint's config into a ModelConfig; build.py turns that into modules. A
family whose maths is not expressible here needs a new word in this file, never an `if` in the
decoder.
"""

from __future__ import annotations

import math
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
class Activation:
    """What a gated block makes of gate and up. kind: one of kernels.operands.ACTIVATIONS.

    alpha and limit belong to swiglu_clamp.
    """

    kind: str = "silu"
    alpha: float = 1.702
    limit: float = 7.0


SILU = Activation()


@dataclass(frozen=True)
class AttentionSpec:
    """Grouped-query softmax attention. window 0 = full; the window counts the token itself.

    rope None: no position encoding. qk_norm: a norm on every q and k head. gate: each head's rows
    of `attn.q` are the query and then as many rows of a gate; sigmoid(gate) multiplies the output.
    """

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
    gate: bool = False

    reference = ""

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of keys and values that one token adds."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """No state beside the paged keys and values."""
        return ()


@dataclass(frozen=True)
class DeltaSpec:
    """Gated DeltaNet: a short convolution, then a state that follows the delta rule.

    fused: q, k, v, z of each key head lie together in `delta.qkvz` and b, a in `delta.ba`; else
    `delta.qkv`, `delta.z`, `delta.b`, `delta.a`. kernel: taps of the convolution.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    fused: bool = False

    kv_elements_per_token = 0
    reference = "Gated DeltaNet layers computed by torch"

    @property
    def values_per_key(self) -> int:
        """Value heads that share a key head."""
        return self.num_value_heads // self.num_key_heads

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.num_key_heads * self.key_dim + self.value_width

    @property
    def value_width(self) -> int:
        """All value heads together."""
        return self.num_value_heads * self.value_dim

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Inputs the convolution still needs; one matrix per value head."""
        state = (self.num_value_heads, self.key_dim, self.value_dim)
        return ((self.kernel - 1, self.conv_width), state)


@dataclass(frozen=True)
class Mamba2Spec:
    """Mamba-2. `mamba.in` gives z, then x | B | C for the convolution, then dt.

    Units: dt_limit in the same unit as dt; B and C have state_dim numbers per group.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    dt_limit: tuple[float, float] = (0.0, math.inf)

    kv_elements_per_token = 0
    reference = "Mamba-2 layers computed by torch"

    @property
    def width(self) -> int:
        """All heads together."""
        return self.num_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.width + 2 * self.num_groups * self.state_dim

    @property
    def in_width(self) -> int:
        """Rows of `mamba.in`."""
        return self.width + self.conv_width + self.num_heads

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Inputs the convolution still needs; one matrix per head."""
        state = (self.num_heads, self.head_dim, self.state_dim)
        return ((self.kernel - 1, self.conv_width), state)


@dataclass(frozen=True)
class ShortConvSpec:
    """Gated short convolution: out(C * conv(B * x)) with B, C, x from `conv.in`."""

    width: int
    kernel: int
    bias: bool = False

    kv_elements_per_token = 0
    reference = "short convolutions computed by torch"

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Inputs the convolution still needs."""
        return ((self.kernel - 1, self.width),)


MixerSpec = AttentionSpec | DeltaSpec | Mamba2Spec | ShortConvSpec


@dataclass(frozen=True)
class MlpSpec:
    """Dense gated MLP, its tensors below `stem`. fused: one tensor `gate_up`, gate first."""

    intermediate_size: int
    activation: Activation = SILU
    bias: bool = False
    fused: bool = False
    stem: str = "mlp"


@dataclass(frozen=True)
class RouterSpec:
    """Scores to expert ids and weights.

    score "softmax" or "sigmoid" over all experts before choosing; `normalize` divides the chosen
    weights by their sum + epsilon; `scale` multiplies them. bias: of the router's matrix;
    correction: added to the scores for the choice only.
    """

    num_experts: int
    num_experts_per_tok: int
    score: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    epsilon: float = 0.0


@dataclass(frozen=True)
class MoeSpec:
    """Routed experts, all of one shape, and an MLP that every token takes beside them.

    bias: experts have biases. shared_gate: the shared MLP is weighted by sigmoid(shared_gate x).
    """

    router: RouterSpec
    intermediate_size: int
    activation: Activation = SILU
    bias: bool = False
    shared: MlpSpec | None = None
    shared_gate: bool = False

    @property
    def reference(self) -> str:
        """What is computed without a fast kernel."""
        return "experts with biases computed one at a time" if self.bias else ""


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: pre-norm mixer, pre-norm feed-forward, residuals around both.

    post_norms: the outputs of both are normalised too, before they are added.
    """

    mixer: MixerSpec
    feed_forward: MlpSpec | MoeSpec
    post_norms: bool = False

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that attends."""
        assert isinstance(self.mixer, AttentionSpec), "this layer's mixer is not attention"
        return self.mixer


@dataclass(frozen=True)
class ModelConfig:
    """Everything the decoder must know, in the engine's own words.

    Units: context_tokens is the trained context; eos_ids end a generation. norm_add_one: the
    weights of layer, final, q and k norms enter as 1 + w. residual_scale multiplies what a block
    adds; logits = softcap(logit_scale * head), softcap(x) = c tanh(x / c), 0 = none.
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
    norm_add_one: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
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

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """The attention blocks, in layer order: those that keep keys and values."""
        blocks = (layer.mixer for layer in self.layers)
        return tuple(block for block in blocks if isinstance(block, AttentionSpec))

    @property
    def has_state(self) -> bool:
        """Whether some layer keeps a state that cannot be cut back to an earlier token."""
        return self.state_elements > 0

    @property
    def state_elements(self) -> int:
        """float32 numbers that the recurrent layers keep for one sequence."""
        shapes = (shape for layer in self.layers for shape in layer.mixer.state_shapes)
        return sum(math.prod(shape) for shape in shapes)

    def kv_bytes_per_token(self, item_bytes: int) -> int:
        """Bytes that one token adds to the keys and values of all layers."""
        return item_bytes * sum(layer.mixer.kv_elements_per_token for layer in self.layers)

    @property
    def reference_notes(self) -> tuple[str, ...]:
        """What users should know of blocks that no fast kernel computes yet."""
        slow = {item.reference for item in (*self._mixers, *self.moe_specs) if item.reference}
        return tuple(f"reference path: {what}; no fast kernel yet, slower" for what in sorted(slow))

    @property
    def _mixers(self) -> tuple[MixerSpec, ...]:
        return tuple(layer.mixer for layer in self.layers)

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes of the recurrent layers' states of one sequence; they do not grow."""
        return 4 * self.state_elements

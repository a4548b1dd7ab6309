"""Architecture as data: what a family's config means, block by block. No torch, no file names.

A family file turns a checkpoint's config into a ModelConfig; build.py turns that into modules. A
family whose maths is not expressible here needs a new word in this file, never an `if` in the
decoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from ftengine.models.attention_specs import (
    HEAD_NORM,
    PLAIN_VALUES,
    Q8_0_GROUP,
    Q8_0_GROUP_BYTES,
    AttentionSpec,
    BlocksSpec,
    CachedShape,
    CompressedSpec,
    EntrySpec,
    HeadNorm,
    IndexerSpec,
    KvShapes,
    LatentSpec,
    RopeSpec,
    ValueSpec,
)
from ftengine.models.scan_specs import ScanSpec

__all__ = [
    "AttentionSpec",
    "BlocksSpec",
    "CachedShape",
    "CompressedSpec",
    "EntrySpec",
    "HEAD_NORM",
    "HeadNorm",
    "IndexerSpec",
    "KvShapes",
    "LatentSpec",
    "PLAIN_VALUES",
    "RopeSpec",
    "ValueSpec",
]
"""Found here too, beside what is defined here."""


@dataclass(frozen=True)
class Activation:
    """What a gated block makes of gate and up. kind: one of kernels.operands.ACTIVATIONS.

    alpha and limit belong to swiglu_clamp. gated False: there is no gate, up itself is activated.
    """

    kind: str = "silu"
    alpha: float = 1.702
    limit: float = 7.0
    gated: bool = True


SILU = Activation()


@dataclass(frozen=True)
class DeltaSpec:
    """Gated DeltaNet: a short convolution, then a state that follows the delta rule.

    fused: q, k, v, z of each key head lie together in `delta.qkvz`, else `delta.qkv` and `delta.z`;
    fused_ba: so do b and a in `delta.ba`, else `delta.b` and `delta.a`. kernel: taps of the
    convolution. tiled: value heads run in turns, one of each key head; else those of a key head
    follow each other. rates: `delta.rate` holds -exp(a_log) instead of `delta.a_log`.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    fused: bool = False
    fused_ba: bool = False
    tiled: bool = False
    rates: bool = False

    kv_shapes: ClassVar[KvShapes] = ()
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

    Units: dt_limit in the same unit as dt; B and C have state_dim numbers per group. norm_groups:
    the norm at the end is over each of so many equal parts. rates: as DeltaSpec has it.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    dt_limit: tuple[float, float] = (0.0, math.inf)
    norm_groups: int = 1
    rates: bool = False

    kv_shapes: ClassVar[KvShapes] = ()
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

    kv_shapes: ClassVar[KvShapes] = ()
    reference = "short convolutions computed by torch"

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Inputs the convolution still needs."""
        return ((self.kernel - 1, self.width),)


@dataclass(frozen=True)
class NoBlock:
    """Nothing: the place of a mixer or a feed-forward in layers that have only the other."""

    kv_shapes: ClassVar[KvShapes] = ()
    state_shapes: ClassVar[tuple[tuple[int, ...], ...]] = ()
    intermediate_size: ClassVar[int] = 0
    reference = ""


MixerSpec = (
    CompressedSpec
    | NoBlock
    | LatentSpec
    | AttentionSpec
    | DeltaSpec
    | Mamba2Spec
    | ShortConvSpec
    | ScanSpec
)


@dataclass(frozen=True)
class MlpSpec:
    """Dense MLP, its tensors below `stem`. fused: one tensor `gate_up`, gate first."""

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
    correction: added to the scores for the choice only. Of `groups` equal groups of experts only
    the kept_groups best are chosen from: by the sum of their two best ("top2") or by their best
    ("max"). identities: further experts, numbered after the others, that return their input.
    input_norm: what is scored is normalised, with weights of its own. expert_scale: a factor for
    the weights of each expert. jitter above 0: experts are chosen one after the other, each weighed
    by a softmax over those that are no further than this from the best left (sparsemixer).
    """

    num_experts: int
    num_experts_per_tok: int
    score: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    epsilon: float = 0.0
    groups: int = 1
    kept_groups: int = 1
    group_by: str = "top2"
    identities: int = 0
    input_norm: bool = False
    expert_scale: bool = False
    table: bool = False
    jitter: float = 0.0

    @property
    def num_choices(self) -> int:
        """What is chosen from."""
        return self.num_experts + self.identities


@dataclass(frozen=True)
class MoeSpec:
    """Routed experts, all of one shape, and an MLP that every token takes beside them.

    bias: experts have biases. shared_gate: the shared MLP is weighted by sigmoid(shared_gate x);
    shared_scale multiplies its output. weigh_input: the weight of an expert multiplies what it is
    given, not what it gives. latent: width of what experts take and give, 0 = the model's own; a
    matrix leads there and one back. The router and the shared MLP see the model's own.
    """

    router: RouterSpec
    intermediate_size: int
    activation: Activation = SILU
    bias: bool = False
    shared: MlpSpec | None = None
    shared_gate: bool = False
    shared_scale: float = 1.0
    weigh_input: bool = False
    latent: int = 0

    @property
    def reference(self) -> str:
        """What is computed without a fast kernel."""
        if not self.activation.gated:
            return "experts without a gate computed one at a time"
        return "experts with biases computed one at a time" if self.bias else ""


@dataclass(frozen=True)
class TwinSpec:
    """A dense MLP and experts side by side, each with a norm before and one after.

    The router sees what no norm has touched.
    """

    mlp: MlpSpec
    moe: MoeSpec

    @property
    def intermediate_size(self) -> int:
        """Of the wider one."""
        return max(self.mlp.intermediate_size, self.moe.intermediate_size)


@dataclass(frozen=True)
class LateSpec(TwinSpec):
    """A dense MLP, and experts of the same input whose output is added after the next layer."""


FeedForwardSpec = MlpSpec | MoeSpec | TwinSpec | NoBlock


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: pre-norm mixer, pre-norm feed-forward, residuals around both.

    post_norms: the outputs of both are normalised too, before they are added. pre_norms False:
    their inputs are not. parallel: both take the same normed input, under one norm. carries (mixer,
    feed-forward): x becomes carry * norm(x) + block(norm(x)), not x + block(norm(x)); 0 = not.
    scaled: a number multiplies the stream at the end. takes_late: what the layer before left over
    is added at the end.
    """

    mixer: MixerSpec
    feed_forward: FeedForwardSpec
    post_norms: bool = False
    pre_norms: bool = True
    parallel: bool = False
    scaled: bool = False
    takes_late: bool = False
    carries: tuple[float, float] = (0.0, 0.0)

    @property
    def experts(self) -> MoeSpec | None:
        """The routed experts of this layer."""
        block = self.feed_forward
        if isinstance(block, TwinSpec):
            return block.moe
        return block if isinstance(block, MoeSpec) else None

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that attends."""
        assert isinstance(self.mixer, AttentionSpec), "this layer's mixer is not attention"
        return self.mixer


@dataclass(frozen=True)
class NormSpec:
    """What layer norms and the last norm are.

    centred: the mean is taken off first (LayerNorm), with `bias` where there is one. plain_final:
    the last norm's weight does not take part in norm_add_one. post_eps: of norms on the outputs of
    blocks, 0 = as all others. embedding: vectors are normalised, without weights, as they come.
    """

    centred: bool = False
    bias: bool = False
    plain_final: bool = False
    post_eps: float = 0.0
    embedding: bool = False


RMS = NormSpec()


@dataclass(frozen=True)
class StreamsSpec:
    """Several residual streams. iterations: of making a matrix's rows and columns sum to 1."""

    count: int
    iterations: int
    eps: float


@dataclass(frozen=True)
class ModelConfig:
    """Everything the decoder must know, in the engine's own words.

    Units: context_tokens is the trained context; eos_ids end a generation. norm_add_one: the
    weights of layer, final, q and k norms enter as 1 + w. norms: see NormSpec. residual_scale
    multiplies what a block adds; logits = softcap(logit_scale * head), softcap(x) = c tanh(x / c),
    0 = none.
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
    norms: NormSpec = RMS
    head_bias: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    notes: tuple[str, ...] = field(default=())
    streams: StreamsSpec | None = None

    @property
    def num_experts(self) -> int:
        """Largest number of routed experts in a layer; 0 for a dense model."""
        return max((moe.router.num_experts for moe in self.moe_specs), default=0)

    @property
    def moe_specs(self) -> tuple[MoeSpec, ...]:
        """The MoE blocks, in layer order."""
        return tuple(layer.experts for layer in self.layers if layer.experts is not None)

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
        shapes = (shape for layer in self.layers for shape in layer.mixer.kv_shapes)
        return math.ceil(item_bytes * sum(shape.elements_per_token for shape in shapes))

    def kv_q8_0_bytes_per_token(self, item_bytes: int) -> int:
        """The same where what can be is kept in q8_0, the rest in numbers of item_bytes."""
        shapes = [shape for layer in self.layers for shape in layer.mixer.kv_shapes]
        small = Q8_0_GROUP_BYTES / Q8_0_GROUP
        sizes = (s.elements_per_token * (small if s.quantizable else item_bytes) for s in shapes)
        return math.ceil(sum(sizes))

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

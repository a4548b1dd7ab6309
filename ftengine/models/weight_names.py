"""Checkpoint tensor names to our names: declarative rules, and what a complete model must hold.

Our names stand in docs/ftw.md; the functions at the end of this file are their definition.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ftengine.models.scan_specs import KdaSpec, LightningSpec, Mamba1Spec
from ftengine.models.spec import (
    AttentionSpec,
    CompressedSpec,
    DeltaSpec,
    LatentSpec,
    LateSpec,
    LayerSpec,
    Mamba2Spec,
    MixerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    NoBlock,
    ShortConvSpec,
    StreamsSpec,
    TwinSpec,
)

STACKED = -1
COPIED = -2

BIAS_PARTS = ("gate_up_bias", "down_bias")
"""Vectors of an expert's row; its matrices are gate, up (or both as gate_up) and down."""

BIAS_HALVES = ("gate_bias", "up_bias")
"""gate_up_bias, where a checkpoint has it in two."""

UP_ALONE = "up_alone"
"""The first matrix of an expert that has no gate."""


@dataclass(frozen=True)
class Rule:
    """One checkpoint name pattern and where its tensor goes.

    {layer} and {expert} in `source` stand for numbers. `target` may name several places, parted by
    "|": layers of other kinds may share the names of their tensors. `part` is empty for a dense
    tensor, else a part of an expert; an expert rule without {expert} is a tensor of all experts,
    [E, rows, cols]. order: how the checkpoint has the rows: "" = as we do; "in_turn": those of gate
    and up take turns; "columns": the matrix lies transposed, [cols, rows]; "columns_in_turn": both.
    Our number of a layer is stride * theirs + offset.
    """

    source: str
    target: str
    part: str = ""
    order: str = ""
    stride: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Place:
    """Where one checkpoint tensor goes: our name, its layer (-1 = none) and expert.

    expert STACKED is one tensor of all experts, COPIED one matrix that every expert repeats.
    order: as Rule has it.
    """

    name: str
    layer: int
    expert: int
    part: str
    order: str = ""

    def settled(self, wanted: Container[str]) -> Place:
        """This place where a model holds one of several: the one that is wanted."""
        names = self.name.split("|")
        if len(names) == 1:
            return self
        return replace(self, name=next((name for name in names if name in wanted), names[0]))

    @property
    def is_stacked(self) -> bool:
        """True for one tensor that holds a part of every expert."""
        return bool(self.part) and self.expert == STACKED


@dataclass(frozen=True)
class Wanted:
    """Shape a dense tensor must have."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class WantedBank:
    """Sizes of one layer's experts. Shape: gate and up [inter, hidden], down [hidden, inter]."""

    num_experts: int
    hidden: int
    inter: int
    bias: bool = False
    gated: bool = True

    @property
    def matrices(self) -> tuple[str, ...]:
        """Parts of an expert that a checkpoint holds, gate and up taken apart."""
        return ("gate", "up", "down") if self.gated else (UP_ALONE, "down")


@dataclass(frozen=True)
class RowPick:
    """Rows of a matrix, or entries of its bias: [start, stop) of each of `groups` equal groups.

    groups 0 = the whole matrix. So tensors that hold several projections are taken apart at load.
    """

    name: str
    groups: int = 0
    start: int = 0
    stop: int = 0


SKIPPED = re.compile(
    r"(^|\.)rotary_emb\.inv_freq$|(^|\.)masked_bias$|\.attn\.bias$|^rope_(freqs|factors_(long|short))\.weight$"
    r"|^(mtp|model\.mtp)\."
    r"|\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)$"
    r"|\.(enorm|hnorm|eh_proj|shared_head\.(norm|head))\.weight$|\.layers\.\d+\.embed_tokens\."
    r"|^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|audio_tower)\."
    r"|^(model\.)?(mm_projector|patch_merge_mlp|embed_vision|embed_audio|vision_adapter|vision_projection)\."
    r"|\.([qkv]_scale|kv_scale|input_scale|input_global_scale|activation_scale|output_scale)$"
    r"|\.weight_shape$|^blk\.\d+\.(nextn|exp_probs_b_vl)\."
)
"""Tensors that carry nothing this engine needs."""

_AS_NUMBERS = {
    ".mla.kv_b": 4,
    ".mla.k_b": 4,
    ".mla.v_b": 4,
    ".router.table": 8,
    ".attn_hc.fn": 8,
    ".ffn_hc.fn": 8,
    "hc_head.fn": 8,
}
"""Endings of matrices that layers keep as plain numbers, whatever their format, and item bytes."""


def number_bytes(name: str) -> int:
    """Bytes of an item of a matrix that is kept as numbers; 0 = it is kept as the kernels read it.

    name: one of ours.
    """
    return next((size for ending, size in _AS_NUMBERS.items() if name.endswith(ending)), 0)


TABLE = re.compile(r"[._]tid2eid(\.weight)?$")
"""Tensors that may hold whole numbers."""


_NUMBER = re.compile(r"(?<=\.)\d{1,5}(?=\.)")


@lru_cache(maxsize=512)
def _pattern(source: str) -> re.Pattern[str]:
    text = re.escape(source)
    text = text.replace(r"\{layer\}", r"(?P<layer>\d{1,5})")
    return re.compile(text.replace(r"\{expert\}", r"(?P<expert>\d{1,6})"))


class Matcher:
    """Finds rules for many names: those that differ in their numbers only share a rule, mostly."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._known: dict[str, tuple[Rule, ...]] = {}

    def match(self, name: str) -> Place | None:
        """Find the place of a checkpoint tensor; None if no rule knows it."""
        form = _NUMBER.sub("#", name)
        known = self._known.get(form)
        for rule in (*(known or ()), *(() if known == () else self._rules)):
            found = _pattern(rule.source).fullmatch(name)
            if found is not None:
                if rule not in (known or ()):
                    self._known[form] = (*(known or ()), rule)
                return _place(rule, found.groupdict())
        if known is None:
            self._known[form] = ()
        return None


def _place(rule: Rule, groups: dict[str, str]) -> Place:
    layer = int(groups["layer"]) * rule.stride + rule.offset if groups.get("layer") else -1
    expert = int(groups["expert"]) if groups.get("expert") else STACKED
    name = rule.target.replace("{layer}", str(layer))
    return Place(name, layer, expert, rule.part, rule.order)


def match(rules: tuple[Rule, ...], name: str) -> Place | None:
    """Find the place of one checkpoint tensor; None if no rule knows it."""
    return Matcher(rules).match(name)


def wanted_tensors(config: ModelConfig) -> dict[str, Wanted]:
    """Every dense tensor a complete model holds, in the order in which an FTW stores them."""
    wanted = {"embed": Wanted((config.vocab_size, config.hidden_size))}
    for number, layer in enumerate(config.layers):
        for name, shape in _layer_tensors(config, layer):
            wanted[f"layers.{number}.{name}"] = Wanted(shape)
    if config.streams is not None:
        shapes = _stream_tensors(config, config.streams, "hc_head")
        wanted |= {name: Wanted(shape) for name, shape in shapes}
    wanted |= {name: Wanted(shape) for name, shape in _norm("norm", config)}
    if not config.tied_head:
        wanted["head"] = Wanted((config.vocab_size, config.hidden_size))
    if config.head_bias:
        wanted["head.bias"] = Wanted((config.vocab_size,))
    return wanted


def wanted_banks(config: ModelConfig) -> dict[str, WantedBank]:
    """Every expert bank a complete model holds, by name."""
    banks = {}
    for number, layer in enumerate(config.layers):
        block = layer.experts
        if block is not None:
            banks[f"layers.{number}.experts"] = WantedBank(
                block.router.num_experts,
                block.latent or config.hidden_size,
                block.intermediate_size,
                block.bias,
                block.activation.gated,
            )
    return banks


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _norm(name: str, config: ModelConfig) -> Shapes:
    yield name, (config.hidden_size,)
    if config.norms.bias:
        yield name + ".bias", (config.hidden_size,)


def _layer_tensors(config: ModelConfig, layer: LayerSpec) -> Shapes:
    hidden, block = config.hidden_size, layer.feed_forward
    if not isinstance(layer.mixer, NoBlock):
        if layer.pre_norms:
            yield from _norm("attn_norm", config)
        yield from _mixer_tensors(hidden, layer.mixer)
        if layer.post_norms:
            yield from _norm("attn_post_norm", config)
    if isinstance(block, NoBlock):
        return
    if layer.pre_norms and not layer.parallel:
        yield from _norm("ffn_norm", config)
    yield from _block_tensors(config, block)
    if layer.post_norms:
        yield from _norm("ffn_post_norm", config)
    if config.streams is not None:
        for name in ("attn_hc", "ffn_hc"):
            yield from _stream_tensors(config, config.streams, name)
    if layer.scaled:
        yield "scale", (1,)


def _block_tensors(config: ModelConfig, block: MlpSpec | MoeSpec | TwinSpec) -> Shapes:
    hidden = config.hidden_size
    if isinstance(block, MlpSpec):
        yield from _mlp_tensors(hidden, block)
    elif isinstance(block, MoeSpec):
        yield from _moe_tensors(hidden, block, config.vocab_size)
    else:
        yield from _mlp_tensors(hidden, block.mlp)
        yield from _moe_tensors(hidden, block.moe, config.vocab_size)
        if not isinstance(block, LateSpec):
            for name in ("ffn_post_norm_1", "ffn_norm_2", "ffn_post_norm_2"):
                yield from _norm(name, config)


def _mixer_tensors(hidden: int, mixer: MixerSpec) -> Shapes:
    if isinstance(mixer, AttentionSpec):
        return _attention_tensors(hidden, mixer)
    if isinstance(mixer, CompressedSpec):
        return _compressed_tensors(hidden, mixer)
    if isinstance(mixer, LatentSpec):
        return _latent_tensors(hidden, mixer)
    if isinstance(mixer, DeltaSpec):
        return _delta_tensors(hidden, mixer)
    if isinstance(mixer, Mamba2Spec):
        return _mamba2_tensors(hidden, mixer)
    if isinstance(mixer, KdaSpec):
        return _kda_tensors(hidden, mixer)
    if isinstance(mixer, Mamba1Spec):
        return _mamba1_tensors(hidden, mixer)
    if isinstance(mixer, LightningSpec):
        return _lightning_tensors(hidden, mixer)
    if isinstance(mixer, NoBlock):
        return iter(())
    return _short_conv_tensors(hidden, mixer)


def _attention_tensors(hidden: int, attention: AttentionSpec) -> Shapes:
    heads = attention.num_heads
    width = heads * attention.head_dim
    kv_rows = attention.num_kv_heads * attention.head_dim
    q_rows = 2 * width if attention.gate and not attention.gate_apart else width
    if attention.fused:
        yield from _matrix("attn.qkv", q_rows + 2 * kv_rows, hidden, attention.qkv_bias)
    else:
        parts = [("q", q_rows), ("k", kv_rows)]
        if not attention.values.of_keys:
            parts.append(("v", attention.num_kv_heads * attention.value_dim))
        for name, rows in parts:
            yield from _matrix(f"attn.{name}", rows, hidden, attention.qkv_bias)
    if attention.gate_apart:
        yield "attn.gate", (width, hidden)
    if attention.qk_norm and not attention.norm.free:
        whole = attention.norm.whole
        yield "attn.q_norm", (width if whole else attention.head_dim,)
        yield "attn.k_norm", (kv_rows if whole else attention.head_dim,)
    if attention.blocks is not None:
        blocks = attention.blocks
        yield "attn.index_q", (blocks.num_heads * blocks.head_dim, hidden)
        yield "attn.index_k", (blocks.head_dim, hidden)
        yield "attn.index_q_norm", (blocks.head_dim,)
        yield "attn.index_k_norm", (blocks.head_dim,)
    if attention.sinks:
        yield "attn.sinks", (attention.num_heads,)
    yield from _matrix("attn.o", hidden, heads * attention.value_dim, attention.out_bias)


def _latent_tensors(hidden: int, latent: LatentSpec) -> Shapes:
    heads, q_rows = latent.num_heads, latent.num_heads * latent.head_dim
    if latent.q_rank:
        yield "mla.q_a", (latent.q_rank, hidden)
        yield "mla.q_a_norm", (latent.q_rank,)
        yield "mla.q_b", (q_rows, latent.q_rank)
    else:
        yield "mla.q", (q_rows, hidden)
    yield "mla.kv_a", (latent.kv_width, hidden)
    yield "mla.kv_a_norm", (latent.kv_rank,)
    if latent.apart:
        yield "mla.k_b", (heads * latent.kv_rank, latent.nope_dim)
        yield "mla.v_b", (heads * latent.value_dim, latent.kv_rank)
    else:
        yield "mla.kv_b", (heads * (latent.nope_dim + latent.value_dim), latent.kv_rank)
    if latent.gate:
        yield "mla.gate", (heads, hidden)
    yield "mla.o", (hidden, heads * latent.value_dim)
    index = latent.indexer
    if index is not None and not index.shared:
        yield "index.q", (index.num_heads * index.head_dim, latent.q_rank)
        yield "index.k", (index.head_dim, hidden)
        yield "index.k_norm", (index.head_dim,)
        yield "index.k_norm.bias", (index.head_dim,)
        yield "index.weights", (index.num_heads, hidden)


def _compressed_tensors(hidden: int, spec: CompressedSpec) -> Shapes:
    width = spec.num_heads * spec.head_dim
    yield "csa.q_a", (spec.q_rank, hidden)
    yield "csa.q_a_norm", (spec.q_rank,)
    yield "csa.q_b", (width, spec.q_rank)
    yield "csa.kv", (spec.head_dim, hidden)
    yield "csa.kv_norm", (spec.head_dim,)
    yield "csa.sinks", (spec.num_heads,)
    for name, (dim, made) in zip(("entry", "index"), spec.pooled, strict=False):
        assert spec.entries is not None
        yield f"csa.{name}_kv", (made, hidden)
        yield f"csa.{name}_gate", (made, hidden)
        yield f"csa.{name}_place", (spec.entries.ratio, made)
        yield f"csa.{name}_norm", (dim,)
    if spec.entries is not None and spec.entries.indexer is not None:
        index = spec.entries.indexer
        yield "csa.index_q", (index.num_heads * index.head_dim, spec.q_rank)
        yield "csa.index_weights", (index.num_heads, hidden)
    yield "csa.o_a", (spec.num_groups * spec.group_rank, width // spec.num_groups)
    yield "csa.o_b", (hidden, spec.num_groups * spec.group_rank)


def _stream_tensors(config: ModelConfig, streams: StreamsSpec, name: str) -> Shapes:
    """Mixing weights around a block, or those at the end."""
    count = streams.count
    rows, scales = (count, 1) if name == "hc_head" else ((2 + count) * count, 3)
    yield f"{name}.fn", (rows, count * config.hidden_size)
    yield f"{name}.base", (rows,)
    yield f"{name}.scale", (scales,)


def _delta_tensors(hidden: int, delta: DeltaSpec) -> Shapes:
    heads, values = delta.num_value_heads, delta.value_width
    if delta.fused:
        yield "delta.qkvz", (delta.conv_width + values, hidden)
    else:
        yield "delta.qkv", (delta.conv_width, hidden)
        yield "delta.z", (values, hidden)
    if delta.fused_ba:
        yield "delta.ba", (2 * heads, hidden)
    else:
        yield "delta.b", (heads, hidden)
        yield "delta.a", (heads, hidden)
    yield "delta.conv", (delta.conv_width, 1, delta.kernel)
    yield "delta.rate" if delta.rates else "delta.a_log", (heads,)
    yield "delta.dt_bias", (heads,)
    yield "delta.norm", (delta.value_dim,)
    yield "delta.o", (hidden, values)


def _mamba2_tensors(hidden: int, mamba: Mamba2Spec) -> Shapes:
    yield from _matrix("mamba.in", mamba.in_width, hidden, mamba.proj_bias)
    yield "mamba.conv", (mamba.conv_width, 1, mamba.kernel)
    if mamba.conv_bias:
        yield "mamba.conv.bias", (mamba.conv_width,)
    for name in ("rate" if mamba.rates else "a_log", "d", "dt_bias"):
        yield f"mamba.{name}", (mamba.num_heads,)
    yield "mamba.norm", (mamba.width,)
    yield from _matrix("mamba.o", hidden, mamba.width, mamba.proj_bias)


def _kda_tensors(hidden: int, kda: KdaSpec) -> Shapes:
    width = kda.width
    for name in "qkv":
        yield f"kda.{name}", (width, hidden)
    for name in "qkv":
        yield f"kda.{name}_conv", (width, 1, kda.kernel)
    for name in "fg":
        if kda.rank:
            yield f"kda.{name}_a", (kda.rank, hidden)
            yield f"kda.{name}_b", (width, kda.rank)
        else:
            yield f"kda.{name}", (width, hidden)
    yield "kda.b", (kda.num_heads, hidden)
    yield "kda.rate" if kda.rates else "kda.a_log", (kda.num_heads,)
    yield "kda.dt_bias", (width,)
    yield "kda.norm", (kda.head_dim,)
    yield "kda.o", (hidden, width)


def _mamba1_tensors(hidden: int, mamba: Mamba1Spec) -> Shapes:
    width, states = mamba.width, mamba.state_dim
    yield from _matrix("mamba.in", mamba.in_width, hidden, mamba.proj_bias)
    yield "mamba.conv", (width, 1, mamba.kernel)
    if mamba.conv_bias:
        yield "mamba.conv.bias", (width,)
    yield "mamba.x", (mamba.dt_rank + 2 * states, width)
    for name, size in (("dt", mamba.dt_rank), ("b", states), ("c", states)):
        yield f"mamba.{name}_norm", (size,)
    yield from _matrix("mamba.dt", width, mamba.dt_rank, bias=True)
    yield "mamba.rate" if mamba.rates else "mamba.a_log", (width, states)
    yield "mamba.d", (width,)
    yield from _matrix("mamba.o", hidden, width, mamba.proj_bias)


def _lightning_tensors(hidden: int, light: LightningSpec) -> Shapes:
    yield "light.qkv", (3 * light.width, hidden)
    yield "light.gate", (light.width, hidden)
    yield "light.norm", (light.width,)
    yield "light.o", (hidden, light.width)


def _short_conv_tensors(hidden: int, conv: ShortConvSpec) -> Shapes:
    yield from _matrix("conv.in", 3 * conv.width, hidden, conv.bias)
    yield "conv.conv", (conv.width, 1, conv.kernel)
    if conv.bias:
        yield "conv.conv.bias", (conv.width,)
    yield from _matrix("conv.o", hidden, conv.width, conv.bias)


def _moe_tensors(hidden: int, block: MoeSpec, vocab_size: int) -> Shapes:
    count = block.router.num_choices
    if block.router.input_norm:
        yield "router.norm", (hidden,)
    yield from _matrix("router", count, hidden, block.router.bias)
    if block.router.correction:
        yield "router.correction", (count,)
    if block.router.table:
        yield "router.table", (vocab_size, block.router.num_experts_per_tok)
    if block.router.expert_scale:
        yield "router.expert_scale", (count,)
    if block.latent:
        yield "latent.down", (block.latent, hidden)
        yield "latent.up", (hidden, block.latent)
    if block.shared is not None:
        yield from _mlp_tensors(hidden, block.shared)
    if block.shared_gate:
        yield "shared_gate", (1, hidden)


def _mlp_tensors(hidden: int, block: MlpSpec) -> Shapes:
    stem, width = block.stem, block.intermediate_size
    if block.fused:
        yield from _matrix(f"{stem}.gate_up", 2 * width, hidden, block.bias)
    else:
        if block.activation.gated:
            yield from _matrix(f"{stem}.gate", width, hidden, block.bias)
        yield from _matrix(f"{stem}.up", width, hidden, block.bias)
    yield from _matrix(f"{stem}.down", hidden, width, block.bias)


def _matrix(name: str, rows: int, cols: int, bias: bool) -> Shapes:
    yield name, (rows, cols)
    if bias:
        yield f"{name}.bias", (rows,)

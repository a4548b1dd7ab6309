"""Checkpoint tensor names to our names: declarative rules, and what a complete model must hold.

Our names stand in docs/ftw.md; the functions at the end of this file are their definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ftengine.models.spec import (
    AttentionSpec,
    DeltaSpec,
    LayerSpec,
    Mamba2Spec,
    MixerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    ShortConvSpec,
)

STACKED = -1
COPIED = -2

BIAS_PARTS = ("gate_up_bias", "down_bias")
"""Vectors of an expert; its matrices are gate, up (or both as gate_up) and down."""


@dataclass(frozen=True)
class Rule:
    """One checkpoint name pattern and where its tensor goes.

    {layer} and {expert} in `source` stand for numbers. `part` is empty for a dense tensor, else a
    part of an expert; an expert rule without {expert} is a tensor of all experts, [E, rows, cols].
    order: how the checkpoint has the rows: "" = as we do; "in_turn": those of gate and up take
    turns; "columns": the matrix lies transposed, [cols, rows]; "columns_in_turn": both.
    """

    source: str
    target: str
    part: str = ""
    order: str = ""


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
    r"(^|\.)rotary_emb\.inv_freq$|(^|\.)masked_bias$|\.attn\.bias$|^rope_freqs\.weight$"
    r"|^(mtp|model\.mtp)\."
    r"|^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|audio_tower)\."
    r"|\.([qkv]_scale|kv_scale|input_scale|input_global_scale|activation_scale|output_scale)$"
)
"""Tensors that carry nothing this engine needs."""


_NUMBER = re.compile(r"(?<=\.)\d{1,5}(?=\.)")


@lru_cache(maxsize=512)
def _pattern(source: str) -> re.Pattern[str]:
    text = re.escape(source)
    text = text.replace(r"\{layer\}", r"(?P<layer>\d{1,5})")
    return re.compile(text.replace(r"\{expert\}", r"(?P<expert>\d{1,6})"))


class Matcher:
    """Finds rules for many names: names that differ in their numbers only share a rule."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._known: dict[str, tuple[Rule, ...]] = {}

    def match(self, name: str) -> Place | None:
        """Find the place of a checkpoint tensor; None if no rule knows it."""
        form = _NUMBER.sub("#", name)
        for rule in self._known.get(form, self._rules):
            found = _pattern(rule.source).fullmatch(name)
            if found is not None:
                self._known[form] = (rule,)
                return _place(rule, found.groupdict())
        self._known[form] = ()
        return None


def _place(rule: Rule, groups: dict[str, str]) -> Place:
    layer = int(groups["layer"]) if groups.get("layer") else -1
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
        for name, shape in _layer_tensors(config.hidden_size, layer):
            wanted[f"layers.{number}.{name}"] = Wanted(shape)
    wanted["norm"] = Wanted((config.hidden_size,))
    if not config.tied_head:
        wanted["head"] = Wanted((config.vocab_size, config.hidden_size))
    return wanted


def wanted_banks(config: ModelConfig) -> dict[str, WantedBank]:
    """Every expert bank a complete model holds, by name."""
    banks = {}
    for number, layer in enumerate(config.layers):
        block = layer.feed_forward
        if isinstance(block, MoeSpec):
            banks[f"layers.{number}.experts"] = WantedBank(
                block.router.num_experts, config.hidden_size, block.intermediate_size, block.bias
            )
    return banks


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _layer_tensors(hidden: int, layer: LayerSpec) -> Shapes:
    yield "attn_norm", (hidden,)
    yield from _mixer_tensors(hidden, layer.mixer)
    if layer.post_norms:
        yield "attn_post_norm", (hidden,)
    yield "ffn_norm", (hidden,)
    block = layer.feed_forward
    if isinstance(block, MlpSpec):
        yield from _mlp_tensors(hidden, block)
    else:
        yield from _moe_tensors(hidden, block)
    if layer.post_norms:
        yield "ffn_post_norm", (hidden,)


def _mixer_tensors(hidden: int, mixer: MixerSpec) -> Shapes:
    if isinstance(mixer, AttentionSpec):
        return _attention_tensors(hidden, mixer)
    if isinstance(mixer, DeltaSpec):
        return _delta_tensors(hidden, mixer)
    if isinstance(mixer, Mamba2Spec):
        return _mamba2_tensors(hidden, mixer)
    return _short_conv_tensors(hidden, mixer)


def _attention_tensors(hidden: int, attention: AttentionSpec) -> Shapes:
    width = attention.num_heads * attention.head_dim
    kv_rows = attention.num_kv_heads * attention.head_dim
    q_rows = 2 * width if attention.gate else width
    for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
        yield from _matrix(f"attn.{name}", rows, hidden, attention.qkv_bias)
    if attention.qk_norm:
        yield "attn.q_norm", (attention.head_dim,)
        yield "attn.k_norm", (attention.head_dim,)
    if attention.sinks:
        yield "attn.sinks", (attention.num_heads,)
    yield from _matrix("attn.o", hidden, width, attention.out_bias)


def _delta_tensors(hidden: int, delta: DeltaSpec) -> Shapes:
    heads, values = delta.num_value_heads, delta.value_width
    if delta.fused:
        yield "delta.qkvz", (delta.conv_width + values, hidden)
        yield "delta.ba", (2 * heads, hidden)
    else:
        yield "delta.qkv", (delta.conv_width, hidden)
        yield "delta.z", (values, hidden)
        yield "delta.b", (heads, hidden)
        yield "delta.a", (heads, hidden)
    yield "delta.conv", (delta.conv_width, 1, delta.kernel)
    yield "delta.a_log", (heads,)
    yield "delta.dt_bias", (heads,)
    yield "delta.norm", (delta.value_dim,)
    yield "delta.o", (hidden, values)


def _mamba2_tensors(hidden: int, mamba: Mamba2Spec) -> Shapes:
    yield from _matrix("mamba.in", mamba.in_width, hidden, mamba.proj_bias)
    yield "mamba.conv", (mamba.conv_width, 1, mamba.kernel)
    if mamba.conv_bias:
        yield "mamba.conv.bias", (mamba.conv_width,)
    for name in ("a_log", "d", "dt_bias"):
        yield f"mamba.{name}", (mamba.num_heads,)
    yield "mamba.norm", (mamba.width,)
    yield from _matrix("mamba.o", hidden, mamba.width, mamba.proj_bias)


def _short_conv_tensors(hidden: int, conv: ShortConvSpec) -> Shapes:
    yield from _matrix("conv.in", 3 * conv.width, hidden, conv.bias)
    yield "conv.conv", (conv.width, 1, conv.kernel)
    if conv.bias:
        yield "conv.conv.bias", (conv.width,)
    yield from _matrix("conv.o", hidden, conv.width, conv.bias)


def _moe_tensors(hidden: int, block: MoeSpec) -> Shapes:
    count = block.router.num_experts
    yield from _matrix("router", count, hidden, block.router.bias)
    if block.router.correction:
        yield "router.correction", (count,)
    if block.shared is not None:
        yield from _mlp_tensors(hidden, block.shared)
    if block.shared_gate:
        yield "shared_gate", (1, hidden)


def _mlp_tensors(hidden: int, block: MlpSpec) -> Shapes:
    stem, width = block.stem, block.intermediate_size
    if block.fused:
        yield from _matrix(f"{stem}.gate_up", 2 * width, hidden, block.bias)
    else:
        yield from _matrix(f"{stem}.gate", width, hidden, block.bias)
        yield from _matrix(f"{stem}.up", width, hidden, block.bias)
    yield from _matrix(f"{stem}.down", hidden, width, block.bias)


def _matrix(name: str, rows: int, cols: int, bias: bool) -> Shapes:
    yield name, (rows, cols)
    if bias:
        yield f"{name}.bias", (rows,)

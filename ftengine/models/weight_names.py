"""Checkpoint tensor names to our names: declarative rules, and what a complete model must hold.

Our names: `embed`, `norm`, `head`, `layers.N.attn_norm`, `layers.N.ffn_norm`,
`layers.N.attn.{q,k,v,o}` (+ `.bias`), `layers.N.attn.{q_norm,k_norm}`,
`layers.N.mlp.{gate,up,down}` (+ `.bias`), `layers.N.router`, and one bank `layers.N.experts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig

EXPERT_PARTS = ("gate", "up", "down", "gate_up")
STACKED = -1
COPIED = -2


@dataclass(frozen=True)
class Rule:
    """One checkpoint name pattern and where its tensor goes.

    {layer} and {expert} in `source` stand for numbers. `part` is empty for a dense tensor, else one
    of EXPERT_PARTS; an expert rule without {expert} is a tensor of all experts, [E, rows, cols].
    """

    source: str
    target: str
    part: str = ""


@dataclass(frozen=True)
class Place:
    """Where one checkpoint tensor goes: our name, its layer (-1 = none) and expert.

    expert STACKED is one tensor of all experts, COPIED one matrix that every expert repeats.
    """

    name: str
    layer: int
    expert: int
    part: str

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


SKIPPED = re.compile(
    r"(^|\.)rotary_emb\.inv_freq$|(^|\.)masked_bias$|\.attn\.bias$|^rope_freqs\.weight$"
    r"|^(mtp|model\.mtp)\."
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
    return Place(rule.target.replace("{layer}", str(layer)), layer, expert, rule.part)


def match(rules: tuple[Rule, ...], name: str) -> Place | None:
    """Find the place of one checkpoint tensor; None if no rule knows it."""
    return Matcher(rules).match(name)


def wanted_tensors(config: ModelConfig) -> dict[str, Wanted]:
    """Every dense tensor a complete model holds, in the order in which an FTW stores them."""
    wanted = {"embed": Wanted((config.vocab_size, config.hidden_size))}
    for number, layer in enumerate(config.layers):
        for name, entry in _layer_tensors(config.hidden_size, layer):
            wanted[f"layers.{number}.{name}"] = entry
    wanted["norm"] = Wanted((config.hidden_size,))
    if not config.tied_head:
        wanted["head"] = Wanted((config.vocab_size, config.hidden_size))
    return wanted


def wanted_banks(config: ModelConfig) -> dict[str, WantedBank]:
    """Every expert bank a complete model holds, by name."""
    banks = {}
    for number, layer in enumerate(config.layers):
        block = layer.feed_forward
        if not isinstance(block, MlpSpec):
            banks[f"layers.{number}.experts"] = WantedBank(
                block.router.num_experts, config.hidden_size, block.intermediate_size
            )
    return banks


def _layer_tensors(hidden: int, layer: LayerSpec) -> Iterator[tuple[str, Wanted]]:
    attention = layer.attention
    q_rows = attention.num_heads * attention.head_dim
    kv_rows = attention.num_kv_heads * attention.head_dim
    yield "attn_norm", Wanted((hidden,))
    for name, rows, has_bias in (
        ("q", q_rows, attention.qkv_bias),
        ("k", kv_rows, attention.qkv_bias),
        ("v", kv_rows, attention.qkv_bias),
    ):
        yield f"attn.{name}", Wanted((rows, hidden))
        if has_bias:
            yield f"attn.{name}.bias", Wanted((rows,))
    if attention.qk_norm:
        yield "attn.q_norm", Wanted((attention.head_dim,))
        yield "attn.k_norm", Wanted((attention.head_dim,))
    yield "attn.o", Wanted((hidden, q_rows))
    if attention.out_bias:
        yield "attn.o.bias", Wanted((hidden,))
    yield "ffn_norm", Wanted((hidden,))
    block = layer.feed_forward
    if not isinstance(block, MlpSpec):
        yield "router", Wanted((block.router.num_experts, hidden))
        return
    for name, shape in (
        ("gate", (block.intermediate_size, hidden)),
        ("up", (block.intermediate_size, hidden)),
        ("down", (hidden, block.intermediate_size)),
    ):
        yield f"mlp.{name}", Wanted(shape)
        if block.bias:
            yield f"mlp.{name}.bias", Wanted(shape[:1])

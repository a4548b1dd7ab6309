"""Family: the record each family file fills in, and the config dialects all of them share.

Read a config through `Config`: it knows both spellings of rope settings, wrong types become
LoadErrors that name the key, and absent optional keys get the family's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.spec import (
    SILU,
    Activation,
    AttentionSpec,
    LayerSpec,
    ModelConfig,
    RopeSpec,
)
from ftengine.models.weight_names import Rule

_SIZE_LIMIT = 1 << 32
_LAYER_LIMIT = 1024
_SCALING_KEYS = {
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_ACTIVATIONS = {
    "silu": SILU,
    "swish": SILU,
    "gelu_pytorch_tanh": Activation("gelu_tanh"),
}
_YARN_OPTIONAL = (
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
)


@dataclass(frozen=True)
class GgufKey:
    """A setting of GGUF files under the name that config.json gives it.

    name: "outer.inner" is a setting inside an object, which is left alone where there is none.
    source: the key below "<arch>.", or several parted by "|", of which the first that is there
    counts; "" = every such file means `default`. default None: the key may be absent, and
    config.json then is without it too. kind: "size", "count" (0 too), "number", "flag", "list" (of
    whole numbers), "tensor" (whether the file has a tensor called `source`, with "{layer}" in its
    name: in any layer), "missing" (whether a layer is without that tensor), "factors" (the numbers
    of that tensor), "share" (which part of them is 1), "ignored" (such files have it, and it means
    nothing), or "kinds": a kind for each layer, the first in `kinds` whose key is not 0 there or
    whose tensor "blk.{layer}..." is there; ("kind", "") always holds.

    What is read is multiplied by `times`, divided by the setting `over` and lessened by `less`.
    where: of a list with an entry for each layer, that of the first layer where another list says
    so. only: the key counts in files with this setting, None = without it. A later key of the same
    name replaces an earlier one.
    """

    name: str
    source: str
    kind: str = "size"
    default: Any = None
    times: float = 1.0
    over: str = ""
    less: str = ""
    where: tuple[str, bool] | None = None
    only: tuple[str, Any] | None = None
    kinds: tuple[tuple[str, str], ...] = ()


GGUF_LAYOUT = GgufKey("gguf_layout", "", "flag", True)
"""Weights are as llama.cpp's converter leaves them: norms with 1 + w hold the sum, decays are
-exp(A_log), gate and up of shared experts stand apart, value heads of Gated DeltaNet run in turns.
"""
MLP_KINDS_KEY = GgufKey(
    "mlp_layer_types",
    "",
    "kinds",
    kinds=(("sparse", "blk.{layer}.ffn_gate_inp.weight"), ("dense", "")),
)
"""Layers have experts where they have a router."""
ROTATED_KEY = GgufKey(
    "partial_rotary_factor", "rope.dimension_count", "number", over="attention.key_length"
)
GROUP_KEYS = (
    GgufKey("n_group", "expert_group_count", "count", 1),
    GgufKey("topk_group", "expert_group_used_count", "count", 1),
)
EXPERT_KEYS = (
    GgufKey("num_experts", "expert_count"),
    GgufKey("num_experts_per_tok", "expert_used_count"),
)
ROUTED_KEYS = (
    *EXPERT_KEYS,
    GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
    GgufKey("first_k_dense_replace", "leading_dense_block_count", "count", 0),
    GgufKey("routed_scaling_factor", "expert_weights_scale", "number"),
    GgufKey("norm_topk_prob", "expert_weights_norm", "flag"),
)


@dataclass(frozen=True)
class Family:
    """One architecture: how to recognise it, read its config and name its weights.

    gguf_archs: GGUF files that are read; gguf_name: the architecture's name there in any case.
    gguf_keys: settings of such files beside those that all have. gguf_permuted says that GGUF files
    of this family hold q and k rows in interleaved rope order. gguf_only: where families share an
    architecture, settings and their values (None = absent) by which this one's files are known.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    gguf_archs: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any]], ModelConfig]
    weights: tuple[Rule, ...]
    gguf_weights: tuple[Rule, ...] = ()
    gguf_permuted: bool = False
    gguf_name: str = ""
    gguf_keys: tuple[GgufKey, ...] = ()
    gguf_only: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @property
    def info_name(self) -> str:
        """The name under which model_info lists settings."""
        return self.gguf_name or self.gguf_archs[0]


class Config:
    """Typed reading of a config.json dictionary. Raises: LoadError naming the key."""

    def __init__(self, values: Mapping[str, Any]):
        self.values = values

    def size(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is set, a whole number from 1."""
        value = self._first(keys)
        if value is None:
            value = default
        if type(value) is not int or not 0 < value <= _SIZE_LIMIT:
            raise LoadError(f"config.json: {keys[0]} must be a whole number above 0, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        value = self.values.get(key)
        return _number(key, default if value is None else value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise LoadError(f"config.json: {key} must be true or false, got {value!r}")
        return value

    def num_layers(self) -> int:
        """num_hidden_layers, bounded."""
        count = self.size("num_hidden_layers")
        if count > _LAYER_LIMIT:
            raise LoadError(f"config.json: num_hidden_layers {count} is above {_LAYER_LIMIT}")
        return count

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or null."""
        value = self.values.get(key)
        if value is None:
            return ()
        found = value if isinstance(value, list) else [value]
        if not all(type(item) is int and item >= 0 for item in found):
            raise LoadError(f"config.json: {key} must be a token id or a list of them")
        return tuple(dict.fromkeys(found))

    def activation(self, key: str = "hidden_act") -> Activation:
        """What gate and up become. Raises: LoadError listing what is built."""
        name = self.values.get(key, "silu")
        if name not in _ACTIVATIONS:
            built = ", ".join(_ACTIVATIONS)
            raise LoadError(f"config.json: {key} {name!r} is not built yet; built: {built}")
        return _ACTIVATIONS[name]

    def layer_types(self, default: Callable[[int], str], *known: str) -> tuple[str, ...]:
        """layer_types, else default(layer) of each layer; every one must be in `known`."""
        count = self.num_layers()
        kinds = self.values.get("layer_types")
        if kinds is None:
            kinds = [default(layer) for layer in range(count)]
        if not isinstance(kinds, list) or len(kinds) != count:
            raise LoadError(f"config.json: layer_types must list {count} layers")
        for kind in kinds:
            if kind not in known:
                raise LoadError(
                    f"config.json: layer_types holds {str(kind)[:40]!r}; known: {', '.join(known)}"
                )
        return tuple(kinds)

    def rope(self, head_dim: int, default_theta: float, default_partial: float = 1.0) -> RopeSpec:
        """Rope settings in either dialect."""
        return self.rope_of(self._rope_values(), head_dim, default_theta, default_partial)

    def rope_of(
        self,
        both: Mapping[str, Any],
        head_dim: int,
        default_theta: float,
        default_partial: float = 1.0,
    ) -> RopeSpec:
        """Rope settings of one kind of layer, from the keys of rope_parameters."""
        theta = _number("rope_theta", both.get("rope_theta", default_theta))
        partial = _number(
            "partial_rotary_factor", both.get("partial_rotary_factor", default_partial)
        )
        dims = int(head_dim * partial)
        if theta <= 0 or not 0 < dims <= head_dim or dims % 2:
            raise LoadError(
                f"config.json: rope_theta {theta} or partial_rotary_factor {partial} is not usable "
                f"with head_dim {head_dim}"
            )
        kind = both.get("rope_type", both.get("type", "default"))
        if kind in (None, "default", "none"):
            return RopeSpec(dims, theta)
        if kind == "longrope":
            return RopeSpec(dims, theta, scaling=kind, factors=self._long_factors(both, dims // 2))
        if kind not in _SCALING_KEYS:
            known = ", ".join(("default", *_SCALING_KEYS, "longrope"))
            raise LoadError(f"config.json: rope scaling {kind!r} is not built yet; built: {known}")
        return RopeSpec(dims, theta, scaling=kind, factors=self._factors(kind, both))

    def _rope_values(self) -> dict[str, Any]:
        """rope_parameters over rope_scaling over flat keys, as one dictionary."""
        merged: dict[str, Any] = {}
        for key in ("rope_theta", "partial_rotary_factor"):
            if self.values.get(key) is not None:
                merged[key] = self.values[key]
        for key in ("rope_scaling", "rope_parameters"):
            inner = self.values.get(key)
            if inner is None:
                continue
            if not isinstance(inner, dict):
                raise LoadError(f"config.json: {key} must be an object or null")
            merged.update({name: item for name, item in inner.items() if item is not None})
        return merged

    def _factors(self, kind: str, both: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
        values = dict(both)
        if kind == "yarn":
            values.setdefault(
                "original_max_position_embeddings", self.size("max_position_embeddings")
            )
        names = _SCALING_KEYS[kind] + (_YARN_OPTIONAL if kind == "yarn" else ())
        found = []
        for name in names:
            if name in values:
                found.append((name, _number(name, values[name], allow_flag=name == "truncate")))
            elif name in _SCALING_KEYS[kind]:
                raise LoadError(f"config.json: rope scaling {kind} needs {name}")
        if dict(found)["factor"] <= 0:
            raise LoadError("config.json: rope scaling factor must be above 0")
        return tuple(found)

    def _long_factors(self, both: Mapping[str, Any], count: int) -> tuple[tuple[str, float], ...]:
        """Two lists of divisors, and what to multiply cosines by with each."""
        found = []
        for kind in ("short", "long"):
            divisors = both.get(f"{kind}_factor")
            if not isinstance(divisors, list) or len(divisors) != count:
                raise LoadError(f"config.json: longrope needs {kind}_factor, a list of {count}")
            found += [(f"{kind}_{j}", _number(f"{kind}_factor", d)) for j, d in enumerate(divisors)]
        for key in ("short_mscale", "long_mscale", "attention_factor"):
            if both.get(key) is not None:
                found.append((key, _number(key, both[key])))
        longest = self.size("max_position_embeddings")
        old = both.get("original_max_position_embeddings")
        if old is None:
            old = self.size("original_max_position_embeddings", default=longest)
        found.append(("original_max_position_embeddings", _number("original_max", old)))
        found.append(("max_position_embeddings", float(longest)))
        return tuple(found)

    def _first(self, keys: tuple[str, ...]) -> Any:
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        return None


def text_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's settings of a wrapper, flat; a plain config as it is.

    Tying and stop ids count where they stand outermost: the converter writes them there.
    Raises: LoadError where text_config is no object.
    """
    inner = values.get("text_config")
    if inner is None:
        return dict(values)
    if not isinstance(inner, dict):
        raise LoadError("config.json: text_config must be an object")
    outer = ("tie_word_embeddings", "eos_token_id", "bos_token_id")
    return inner | {key: values[key] for key in outer if values.get(key) is not None}


def read_model(
    config: Config, family: str, layers: tuple[LayerSpec, ...], **more: Any
) -> ModelConfig:
    """What every family's config says alike; `more` are fields of ModelConfig that differ."""
    fields: dict[str, Any] = {
        "hidden_size": config.size("hidden_size"),
        "vocab_size": config.size("vocab_size"),
        "context_tokens": config.size("max_position_embeddings", default=32768),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "tied_head": config.flag("tie_word_embeddings", False),
        "eos_ids": config.token_ids("eos_token_id"),
        "bos_id": next(iter(config.token_ids("bos_token_id")), None),
    }
    if gguf_layout(config):
        more["norm_add_one"] = False
    return ModelConfig(family=family, layers=layers, **(fields | more))


def gguf_layout(config: Config) -> bool:
    """Whether weights are as GGUF_LAYOUT says."""
    return config.flag(GGUF_LAYOUT.name, False)


def read_attention(
    config: Config,
    *,
    default_theta: float,
    qk_norm: bool = False,
    bias: bool = False,
    window: int = 0,
    gate: bool = False,
    default_partial: float = 1.0,
) -> AttentionSpec:
    """The grouped-query attention block that most families share."""
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", default=heads)
    head_dim = config.size("head_dim", default=max(1, hidden // heads))
    if heads % kv_heads:
        raise LoadError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=float(head_dim) ** -0.5,
        rope=config.rope(head_dim, default_theta, default_partial),
        qk_norm=qk_norm,
        qkv_bias=bias,
        out_bias=bias,
        window=window,
        gate=gate,
    )


def sliding_window(config: Config) -> int:
    """sliding_window as tokens; 0 when null, absent or no smaller than the context."""
    value = config.values.get("sliding_window")
    if value is None:
        return 0
    window = config.size("sliding_window")
    return 0 if window >= config.size("max_position_embeddings", default=window) else window


def _number(key: str, value: Any, *, allow_flag: bool = False) -> float:
    if isinstance(value, bool) and allow_flag:
        return float(value)
    if type(value) not in (int, float) or not abs(value) < 1e30:
        raise LoadError(f"config.json: {key} must be a number, got {value!r}")
    return float(value)

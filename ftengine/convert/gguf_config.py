"""GGUF key-values to an HF-style config.json, and the ids that end a generation."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Family, GgufKey

Tensors = Mapping[str, Sequence[float] | None]
"""Names of all tensors, and the numbers of those that belong to the config."""

_END_TEXTS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|return|>",
    "<|call|>",
    "<|end|>",
    "</s>",
)
"""Tokens that end a turn in the chat formats of the built families."""
_MESSAGE_END, _TURN_END = "<|end|>", "<|return|>"
"""With the second among the tokens, the first only ends one of several messages of a turn."""
_CONTROL, _USER = 3, 4
_EPSILON = "attention.layer_norm_rms_epsilon|attention.layer_norm_epsilon"
LONG_FACTORS = "rope_factors_long.weight"
ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3_CONTEXTS = (8192, 4096, 16384)
_LLAMA3_HIGHS = (4.0, 1.0)
"""high_freq_factor of Llama 3 and of Llama 4; low_freq_factor is 1 in both."""
_CHANGES = (
    "attention.temperature_scale",
    "attention.clamp_kqv",
    "attention.value_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
"""Settings that change what is computed: 0, or known to the family."""


class GgufSettings:
    """Typed access to key-values below "<arch>.". Raises: LoadError naming the key."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where
        arch = values.get("general.architecture")
        if not isinstance(arch, str):
            raise LoadError(f"{where} has no general.architecture; is it a model file?")
        self.arch = arch

    def given(self, key: str, default: Any = None) -> Any:
        """The setting as stored; of several keys parted by "|" the first that is there."""
        for name in key.split("|"):
            if f"{self.arch}.{name}" in self.values:
                return self.values[f"{self.arch}.{name}"]
        return default

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; a per-layer list counts if all its entries but 0 are equal."""
        value = _single(self.given(key, default))
        if type(value) is not int or value <= 0:
            shown = str(value)[:60]
            raise LoadError(f"{self.where}: {self.arch}.{key} must be a whole number, got {shown}")
        return value

    def optional_size(self, key: str) -> int:
        """A whole number, 0 when absent."""
        value = self.given(key)
        if isinstance(value, list) and not any(value):
            return 0
        return 0 if value is None or value == 0 else self.size(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A float, as the short decimal that rounds to the stored single; lists as in `size`."""
        value = _single(self.given(key, default))
        if type(value) not in (int, float) or not math.isfinite(value):
            raise LoadError(f"{self.where}: {self.arch}.{key} must be a number, got {value!r}")
        return short_single(float(value))

    def of_layer(self, key: str, layer: int) -> Any:
        """A setting that may be a list with an entry for each layer."""
        value = self.given(key)
        if not isinstance(value, list):
            return value
        if layer >= len(value):
            raise LoadError(f"{self.where}: {self.arch}.{key} has no entry for layer {layer}")
        return value[layer]

    def text(self, key: str) -> str:
        """A text, empty when absent."""
        value = self.values.get(f"{self.arch}.{key}", "")
        return value if isinstance(value, str) else ""


def _single(value: Any) -> Any:
    """What all entries but 0 of a per-layer list are, if they are equal."""
    kinds = {item for item in value if item} if isinstance(value, list) else ()
    return next(iter(kinds)) if len(kinds) == 1 else value


def config_of_gguf(
    settings: GgufSettings,
    family: Family,
    vocab_size: int,
    rope_factors: Sequence[float] | None,
    tensors: Tensors | None = None,
) -> dict[str, Any]:
    """config.json with the names of the family's own config class.

    rope_factors: the rope_freqs tensor, if the file has one. Raises: LoadError naming the key.
    """
    hidden = settings.size("embedding_length")
    heads = settings.size("attention.head_count")
    head_dim = settings.optional_size("attention.key_length") or hidden // heads
    rotated = settings.optional_size("rope.dimension_count") or head_dim
    sources = {name for key in family.gguf_keys for name in key.source.split("|")}
    if ROPE_FACTORS in sources:
        rope_factors = None  # the family's keys say what they mean
    if rotated != head_dim and "rope.dimension_count" not in sources:
        raise LoadError(
            f"{settings.where}: rotating {rotated} of {head_dim} dimensions is not built yet"
        )
    theta = settings.number("rope.freq_base", 10000.0)
    config: dict[str, Any] = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_types[0],
        "hidden_size": hidden,
        # layers that draft tokens are counted there, behind all others
        "num_hidden_layers": settings.size("block_count")
        - settings.optional_size("nextn_predict_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(settings, family, heads),
        "head_dim": head_dim,
        "intermediate_size": settings.optional_size("feed_forward_length"),
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "max_position_embeddings": settings.size("context_length"),
        "rms_norm_eps": settings.number(_EPSILON),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(settings, rope_factors, theta, head_dim),
        "tie_word_embeddings": False,
        "bos_token_id": settings.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(settings.values),
    }
    if tensors and LONG_FACTORS in tensors:
        if LONG_FACTORS not in sources:
            raise LoadError(f"{settings.where}: {LONG_FACTORS} is not built yet for {family.name}")
        config["rope_scaling"] = {"rope_type": "longrope"}  # the family's keys say the rest
    _refuse_unknown(settings, sources, config["max_position_embeddings"])
    _add_own(config, settings, family, tensors or {})
    return config


def _kv_heads(settings: GgufSettings, family: Family, heads: int) -> int:
    """As many for all layers, unless the family itself says of which layers."""
    own = any(key.name == "num_key_value_heads" for key in family.gguf_keys)
    return heads if own else settings.size("attention.head_count_kv", heads)


def _refuse_unknown(settings: GgufSettings, sources: set[str], context: int) -> None:
    """Settings that would change what is computed and that the family does not know."""
    window = settings.optional_size("attention.sliding_window")
    if "attention.sliding_window" not in sources and window and window < context:
        raise LoadError(f"{settings.where}: a sliding window of {window} tokens is not built yet")
    for key in _CHANGES:
        value = settings.given(key, 0)
        if key not in sources and (any(value) if isinstance(value, list) else value != 0):
            raise LoadError(
                f"{settings.where}: {settings.arch}.{key} {str(value)[:60]} is not built yet "
                "for this architecture"
            )


def end_ids(values: Mapping[str, Any]) -> list[int]:
    """Ids that end a generation: eos, eot, eom, and special tokens known to end a turn."""
    ids: dict[int, None] = {}
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        value = values.get(f"tokenizer.ggml.{key}")
        if type(value) is int:
            ids[value] = None
    tokens = values.get("tokenizer.ggml.tokens") or []
    types = values.get("tokenizer.ggml.token_type") or []
    special = {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in (_CONTROL, _USER) and token in _END_TEXTS
    }
    if _TURN_END in special:
        special.pop(_MESSAGE_END, None)
    return list(ids | dict.fromkeys(special.values()))


def short_single(value: float) -> float:
    """The shortest decimal with the same float32; 9.99999975e-06 is 1e-05."""
    bits = struct.pack("<f", value)
    for digits in range(1, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == bits:
            return candidate
    return value


def _add_own(
    config: dict[str, Any], settings: GgufSettings, family: Family, tensors: Tensors
) -> None:
    """What the family declares, over what is there."""
    for key in family.gguf_keys:
        if key.kind == "ignored" or not _counts(settings, key):
            continue
        value = _read(settings, key, tensors, config["num_hidden_layers"])
        if value is None:
            continue
        outer, _, inner = key.name.rpartition(".")
        if not outer:
            config[inner] = value
        elif isinstance(config.get(outer), dict):
            config[outer] = {**config[outer], inner: value}


def _counts(settings: GgufSettings, key: GgufKey) -> bool:
    return key.only is None or settings.given(key.only[0]) == key.only[1]


def _read(settings: GgufSettings, key: GgufKey, tensors: Tensors, layers: int) -> Any:
    """The value, None where config.json is to be without it."""
    if key.kind in _OF_TENSORS:
        return _OF_TENSORS[key.kind](key.source, tensors, layers)
    given = settings.given(key.source) if key.source else None
    if key.kind == "kinds" and (given is not None or not key.source):
        return [_kind(settings, key, tensors, layer) for layer in range(layers)]
    if given is None:
        return key.default
    if key.where is not None:
        return _of_first(settings, key, layers)
    if key.kind in ("size", "number"):
        value = settings.size(key.source) if key.kind == "size" else settings.number(key.source)
        return _changed(settings, key, value)
    if type(given) is not {"flag": bool, "list": list}.get(key.kind, int):
        raise LoadError(f"{settings.where}: {settings.arch}.{key.source} is {str(given)[:60]}")
    return given


def _having(source: str, tensors: Tensors, layers: int) -> list[bool]:
    """Whether each layer has the tensor; a name without a layer counts once."""
    names = dict.fromkeys(source.format(layer=layer) for layer in range(layers))
    return [name in tensors for name in names]


def _share_of_ones(source: str, tensors: Tensors, _: int) -> float | None:
    numbers = tensors.get(source)
    return sum(number == 1 for number in numbers) / len(numbers) if numbers else None


_OF_TENSORS: dict[str, Callable[[str, Tensors, int], Any]] = {
    "tensor": lambda source, tensors, layers: any(_having(source, tensors, layers)),
    "missing": lambda source, tensors, layers: not all(_having(source, tensors, layers)),
    "factors": lambda source, tensors, _: tensors.get(source),
    "share": _share_of_ones,
}
"""Kinds of GgufKey that are read of the tensors."""


def _changed(settings: GgufSettings, key: GgufKey, value: float) -> float:
    """The value after `times`, `over` and `less`; a size stays a whole number."""
    if key.over:
        by = settings.size(key.over)
        value = value // by if key.kind == "size" else value / by
    if key.times != 1.0:
        value = short_single(value * key.times)
    return value - settings.size(key.less) if key.less else value


def _of_first(settings: GgufSettings, key: GgufKey, layers: int) -> Any:
    """The entry of the first layer where the other list says so; None without such a layer."""
    assert key.where is not None
    other, wanted = key.where
    for layer in range(layers):
        if bool(settings.of_layer(other, layer)) == wanted:
            return settings.of_layer(key.source, layer)
    return None


def _kind(settings: GgufSettings, key: GgufKey, tensors: Tensors, layer: int) -> str:
    for kind, source in key.kinds:
        if source.startswith("blk."):
            if source.format(layer=layer) in tensors:
                return kind
        elif not source or settings.of_layer(source, layer):
            return kind
    raise LoadError(f"{settings.where}: nothing says of which kind layer {layer} is")


def _rope_scaling(
    settings: GgufSettings, factors: Sequence[float] | None, theta: float, head_dim: int
) -> dict[str, Any] | None:
    kind = settings.text("rope.scaling.type") or "none"
    if factors is not None and any(abs(factor - 1) > 1e-6 for factor in factors):
        if kind not in ("none", "linear"):
            raise LoadError(
                f"{settings.where}: rope_freqs together with {kind} scaling is not built"
            )
        return _llama3_scaling(settings, factors, theta, head_dim)
    if kind == "none" or (kind == "linear" and settings.number("rope.scaling.factor", 1.0) == 1):
        return None
    if kind not in ("linear", "yarn"):
        raise LoadError(
            f"{settings.where}: rope scaling {kind!r} is not built yet; built: linear, yarn, llama3"
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": settings.number("rope.scaling.factor")}
    if kind == "yarn":
        context = settings.optional_size("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = context or settings.size("context_length")
        for name in ("beta_fast", "beta_slow"):
            if f"{settings.arch}.rope.scaling.yarn_{name}" in settings.values:
                scaling[name] = settings.number(f"rope.scaling.yarn_{name}")
        if f"{settings.arch}.rope.scaling.attn_factor" in settings.values:
            # GGUF's factor multiplies yarn's own 0.1 ln(factor) + 1; config.json's replaces it.
            own = 0.1 * math.log(scaling["factor"]) + 1
            scaling["attention_factor"] = settings.number("rope.scaling.attn_factor") * own
    return scaling


def _llama3_scaling(
    settings: GgufSettings, factors: Sequence[float], theta: float, head_dim: int
) -> dict[str, Any]:
    """Find the llama3 numbers whose frequency factors are the stored ones."""
    factor = short_single(max(factors))
    for context, high in product(_LLAMA3_CONTEXTS, _LLAMA3_HIGHS):
        expected = llama3_factors(theta, head_dim, factor, context, high)
        if len(expected) == len(factors) and all(
            abs(a - b) <= 1e-4 * b for a, b in zip(factors, expected, strict=True)
        ):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "original_max_position_embeddings": context,
                "low_freq_factor": 1.0,
                "high_freq_factor": high,
            }
    raise LoadError(
        f"{settings.where}: rope_freqs.weight is not a llama3 scaling (low 1, high 4 or 1); "
        "other frequency factors are not built yet"
    )


def llama3_factors(
    theta: float, head_dim: int, factor: float, context: int, high: float = 4.0
) -> list[float]:
    """Frequency divisors of llama3 scaling, low_freq_factor 1 and high_freq_factor `high`."""
    found = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < context / high:
            found.append(1.0)
        elif wavelength >= context:
            found.append(factor)
        else:
            smooth = (context / wavelength - 1) / (high - 1)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found

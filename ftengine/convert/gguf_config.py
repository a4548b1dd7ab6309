"""GGUF key-values to an HF-style config.json, and the ids that end a generation."""

from __future__ import annotations

import math
import struct
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Family, GgufKey

_END_TEXTS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
)
"""Control tokens that end a turn in the chat formats of the built families."""
_CONTROL = 3
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXTS = (8192, 4096, 16384)


class GgufSettings:
    """Typed access to key-values below "<arch>.". Raises: LoadError naming the key."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where
        arch = values.get("general.architecture")
        if not isinstance(arch, str):
            raise LoadError(f"{where} has no general.architecture; is it a model file?")
        self.arch = arch

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; a per-layer list counts if all its entries are equal."""
        value = self.values.get(f"{self.arch}.{key}", default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if type(value) is not int or value <= 0:
            shown = str(value)[:60]
            raise LoadError(f"{self.where}: {self.arch}.{key} must be a whole number, got {shown}")
        return value

    def optional_size(self, key: str) -> int:
        """A whole number, 0 when absent."""
        value = self.values.get(f"{self.arch}.{key}")
        return 0 if value is None or value == 0 else self.size(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A float, as the short decimal that rounds to the stored single."""
        value = self.values.get(f"{self.arch}.{key}", default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise LoadError(f"{self.where}: {self.arch}.{key} must be a number, got {value!r}")
        return short_single(float(value))

    def text(self, key: str) -> str:
        """A text, empty when absent."""
        value = self.values.get(f"{self.arch}.{key}", "")
        return value if isinstance(value, str) else ""


def config_of_gguf(
    settings: GgufSettings,
    family: Family,
    vocab_size: int,
    rope_factors: Sequence[float] | None,
    tensors: Container[str] = (),
) -> dict[str, Any]:
    """config.json with the names of the family's own config class.

    rope_factors: the rope_freqs tensor, if the file has one. tensors: names of all. Raises:
    LoadError naming the key.
    """
    hidden = settings.size("embedding_length")
    heads = settings.size("attention.head_count")
    head_dim = settings.optional_size("attention.key_length") or hidden // heads
    rotated = settings.optional_size("rope.dimension_count") or head_dim
    named = {key.name for key in family.gguf_keys}
    if rotated != head_dim and "partial_rotary_factor" not in named:
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
        "num_key_value_heads": settings.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": settings.size("feed_forward_length"),
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "max_position_embeddings": settings.size("context_length"),
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(settings, rope_factors, theta, head_dim),
        "tie_word_embeddings": False,
        "bos_token_id": settings.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(settings.values),
    }
    window = settings.optional_size("attention.sliding_window")
    if "sliding_window" not in named and window and window < config["max_position_embeddings"]:
        raise LoadError(f"{settings.where}: a sliding window of {window} tokens is not built yet")
    return config | _expert_config(settings, family, tensors)


def end_ids(values: Mapping[str, Any]) -> list[int]:
    """Ids that end a generation: eos, eot, eom, and control tokens known to end a turn."""
    ids: dict[int, None] = {}
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        value = values.get(f"tokenizer.ggml.{key}")
        if type(value) is int:
            ids[value] = None
    tokens = values.get("tokenizer.ggml.tokens") or []
    types = values.get("tokenizer.ggml.token_type") or []
    for number, (token, kind) in enumerate(zip(tokens, types, strict=False)):
        if kind == _CONTROL and token in _END_TEXTS:
            ids[number] = None
    return list(ids)


def short_single(value: float) -> float:
    """The shortest decimal with the same float32; 9.99999975e-06 is 1e-05."""
    bits = struct.pack("<f", value)
    for digits in range(1, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == bits:
            return candidate
    return value


def _own_config(settings: GgufSettings, family: Family, tensors: Container[str]) -> dict[str, Any]:
    """What the family declares."""
    found: dict[str, Any] = {}
    for key in family.gguf_keys:
        if key.kind == "tensor":
            found[key.name] = key.source in tensors
            continue
        given = settings.values.get(f"{settings.arch}.{key.source}")
        if not key.source or (given is None and key.default is not None):
            found[key.name] = key.default
        elif given is not None:
            found[key.name] = _read(settings, key)
    return found


def _read(settings: GgufSettings, key: GgufKey) -> Any:
    if key.kind == "number":
        return settings.number(key.source)
    if key.kind == "size":
        return settings.size(key.source)
    value = settings.values[f"{settings.arch}.{key.source}"]
    if type(value) is not (bool if key.kind == "flag" else int):
        raise LoadError(f"{settings.where}: {settings.arch}.{key.source} is {str(value)[:60]}")
    return value


def _expert_config(
    settings: GgufSettings, family: Family, tensors: Container[str]
) -> dict[str, Any]:
    if family.gguf_keys:
        own = _own_config(settings, family, tensors)
        if "partial_rotary_factor" in own:
            dims = settings.size("attention.key_length")
            own["partial_rotary_factor"] = own["partial_rotary_factor"] / dims
        return own
    count = settings.optional_size("expert_count")
    if not count:
        return {}
    used = settings.size("expert_used_count")
    if family.name == "mixtral":
        return {"num_local_experts": count, "num_experts_per_tok": used, "sliding_window": None}
    return {
        "num_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": settings.size("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


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
    for context in _LLAMA3_CONTEXTS:
        expected = llama3_factors(theta, head_dim, factor, context)
        if len(expected) == len(factors) and all(
            abs(a - b) <= 1e-4 * b for a, b in zip(factors, expected, strict=True)
        ):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "original_max_position_embeddings": context,
                **_LLAMA3,
            }
    raise LoadError(
        f"{settings.where}: rope_freqs.weight is not a llama3 scaling (low 1, high 4); "
        "other frequency factors are not built yet"
    )


def llama3_factors(theta: float, head_dim: int, factor: float, context: int) -> list[float]:
    """Frequency divisors of llama3 scaling, low_freq_factor 1 and high_freq_factor 4."""
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    found = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < context / high:
            found.append(1.0)
        elif wavelength > context / low:
            found.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found

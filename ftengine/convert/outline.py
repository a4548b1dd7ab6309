"""The size of a checkpoint of any family, built or not, from headers and common config keys alone.

A built family is planned exactly (plan.py). What stands here counts bytes by what their names say
and never decides whether a model can run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ftengine.models.weight_names import SKIPPED

_EXPERTS = (".experts.", "_exps.")
_EXPERT_NUMBER = re.compile(r"\.experts\.(\d+)\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|blocks|h)\.(\d+)\.")
_EMBED = re.compile(r"(?:^|\.)(?:embed_tokens|embed|wte|token_embd|word_embeddings)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|output)\.weight$")
_KV_ITEM_BYTES = 2
_NO_KV = ("linear", "mamba", "conv", "recurrent")
_SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.kv_lora_rank": "kv_lora_rank",
}
"""GGUF keys below "<arch>." -> the names of config.json."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a header. Units: bytes in the file."""

    name: str
    bytes: int


def config_of_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The key-values of a GGUF file under the names of config.json."""
    arch = str(values.get("general.architecture", ""))
    found = {ours: values.get(f"{arch}.{key}") for key, ours in _SETTINGS.items()}
    return {"model_type": arch, **{key: item for key, item in found.items() if item is not None}}


def outline(config: Mapping[str, Any], tensors: Iterable[Stored], kind: str) -> dict[str, Any]:
    """What `describe` and `plan` say of a model, as far as names and sizes tell.

    Sizes are exact; kv_bytes_per_token is an upper bound where layers keep less than all keys.
    """
    inner = config.get("text_config")
    values = {**config, **(inner if isinstance(inner, dict) else {})}
    num_layers = _count(values, "num_hidden_layers", "n_layers", "n_layer")
    sizes = _Sizes(num_layers)
    for tensor in tensors:
        sizes.add(tensor)
    experts = _count(values, "n_routed_experts", "num_experts", "num_local_experts")
    experts = experts or sizes.num_experts
    per_token = _count(values, "num_experts_per_tok", "num_experts_per_token", "top_k_experts")
    rows = experts * len(sizes.experts)
    expert_bytes = sum(sizes.experts.values())
    name = str(values.get("model_type") or "unknown")[:80]
    params = 3 * _count(values, "hidden_size") * _expert_width(values)
    return {
        "family": name,
        "details": {
            "format": kind,
            "family": name,
            "families": [name],
            "context_length": _count(values, "max_position_embeddings"),
            "embedding_length": _count(values, "hidden_size"),
        },
        "notes": ["sizes by names and headers; context memory is an upper bound"],
        "load_bytes": sizes.dense + expert_bytes,
        "dense_bytes": sizes.dense,
        "dense_read_bytes": sizes.dense - (sizes.embed if sizes.has_head else 0),
        "expert_bytes": expert_bytes,
        "expert_row_bytes": -(-expert_bytes // rows) if rows else 0,
        "expert_params": params if rows else 0,
        "num_layers": num_layers or sizes.num_layers,
        "num_moe_layers": len(sizes.experts),
        "num_experts": experts if sizes.experts else 0,
        "num_experts_per_tok": min(per_token, experts) if sizes.experts else 0,
        "kv_bytes_per_token": _kv_bytes(values, num_layers or sizes.num_layers),
        "disk_bytes": sizes.dense + expert_bytes,
        "peak_disk_bytes": sizes.dense + expert_bytes,
    }


class _Sizes:
    """Bytes by part. Layers past the last one (drafting heads) are fetched but never loaded."""

    def __init__(self, num_layers: int):
        self._bound = num_layers
        self.num_layers = 0
        self.num_experts = 0
        self.dense = 0
        self.embed = 0
        self.has_head = False
        self.experts: dict[int, int] = defaultdict(int)

    def add(self, tensor: Stored) -> None:
        layer = _LAYER.search(tensor.name)
        if SKIPPED.search(tensor.name) or (layer and 0 < self._bound <= int(layer[1])):
            return
        if layer:
            self.num_layers = max(self.num_layers, int(layer[1]) + 1)
        if layer and any(mark in tensor.name for mark in _EXPERTS):
            self.experts[int(layer[1])] += tensor.bytes
            number = _EXPERT_NUMBER.search(tensor.name)
            self.num_experts = max(self.num_experts, int(number[1]) + 1 if number else 0)
            return
        self.dense += tensor.bytes
        self.embed += tensor.bytes if _EMBED.search(tensor.name) else 0
        self.has_head = self.has_head or bool(_HEAD.search(tensor.name))


def _expert_width(values: Mapping[str, Any]) -> int:
    return _count(values, "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")


def _kv_bytes(values: Mapping[str, Any], num_layers: int) -> int:
    kinds = values.get("layer_types")
    if isinstance(kinds, list):
        num_layers = sum(1 for kind in kinds if not any(word in str(kind) for word in _NO_KV))
    latent = _count(values, "kv_lora_rank")
    if latent:
        rope = _count(values, "qk_rope_head_dim") + _count(values, "index_head_dim")
        return num_layers * (latent + rope) * _KV_ITEM_BYTES
    heads = _count(values, "num_attention_heads")
    kv_heads = _count(values, "num_key_value_heads") or heads
    head_dim = _count(values, "head_dim") or _count(values, "hidden_size") // max(heads, 1)
    return num_layers * 2 * kv_heads * head_dim * _KV_ITEM_BYTES


def _count(values: Mapping[str, Any], *keys: str) -> int:
    """The first of `keys` that is a whole number (of a list: its largest), else 0."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, list):
            numbers = [item for item in value if type(item) is int]
            value = max(numbers, default=None)
        if type(value) is int and 0 < value < 1 << 40:
            return value
    return 0

"""What people and the manager want to know of a model: size, quantisation, context, memory.

Computed from the layout before a conversion and from the finished folder after it, alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftengine.convert.bank_plan import ROWS_LAYOUT
from ftengine.loader.ftw import FtwBank, FtwTensor
from ftengine.loader.stored import SCALE_FORMATS, row_format
from ftengine.models.families import family_named
from ftengine.models.spec import ModelConfig
from ftengine.models.weight_names import number_bytes
from ftengine.models.widths import work_bytes
from ftengine.quant import format_named, panel32

_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
    38: "MXFP4",
    39: "NVFP4",
}
"""general.file_type of GGUF files, by the names people know."""
_SHORT = {
    "fp8_block": "fp8",
    "fp8_block_e8m0": "fp8",
    "fp8_tensor": "fp8",
    "mxfp4_gguf": "mxfp4",
    "nvfp4_div": "nvfp4",
    "int4_group": "int4",
}
_KV_ITEM_BYTES = 2
_DEQUANTIZED_BYTES = 2


@dataclass(frozen=True)
class Facts:
    """What a description is computed from. types: (format, bytes) of the source's tensors."""

    kind: str
    family: str
    config: Mapping[str, Any]
    tensors: tuple[FtwTensor, ...]
    banks: tuple[FtwBank, ...]
    settings: Mapping[str, Any]
    types: tuple[tuple[str, int], ...]
    template: str
    notes: tuple[str, ...]


def describe(facts: Facts) -> dict[str, Any]:
    """The part that `plan` and `result` lines share."""
    model = family_named(facts.family).read_config(facts.config)
    total, active = _parameter_counts(facts, model.moe_specs[:1])
    name = facts.family
    if facts.kind == "gguf":
        name = str(facts.settings.get("general.architecture", name))
    return {
        "family": facts.family,
        "details": {
            "format": facts.kind,
            "family": name,
            "families": [name],
            "parameter_size": human_count(total),
            "quantization_level": _quantization(facts),
            "context_length": model.context_tokens,
            "embedding_length": model.hidden_size,
            "parameter_count": total,
            "active_parameter_count": active,
        },
        "model_info": _model_info(facts, total),
        "capabilities": capabilities_of(facts.template),
        "eos_ids": list(model.eos_ids),
        "load_bytes": _load_bytes(facts),
        **_memory(facts, model),
        "kv_bytes_per_token": model.kv_bytes_per_token(_KV_ITEM_BYTES),
        "kv_q8_0_bytes_per_token": model.kv_q8_0_bytes_per_token(_KV_ITEM_BYTES),
        "state_bytes_per_sequence": model.state_bytes_per_sequence,
        "notes": [
            *facts.notes,
            *model.notes,
            *_reference_notes(facts),
            *model.reference_notes,
        ],
    }


def _memory(facts: Facts, model: ModelConfig) -> dict[str, int]:
    """What a forecast needs. Units: bytes in memory; an expert's row is the largest layer's."""
    moe = model.moe_specs[:1]
    return {
        "dense_bytes": _dense_bytes(facts),
        "work_bytes": work_bytes(model),
        "expert_bytes": _expert_bytes(facts),
        "expert_row_bytes": max(map(_expert_row_bytes, facts.banks), default=0),
        "num_layers": len(model.layers),
        "num_moe_layers": len(facts.banks),
        "num_experts": model.num_experts,
        "num_experts_per_tok": moe[0].router.num_experts_per_tok if moe else 0,
    }


def human_count(number: int) -> str:
    """A count as Ollama prints it: 134.52M, 30.5B, 7B."""
    for unit, letter, digits in ((10**12, "T", 1), (10**9, "B", 1), (10**6, "M", 2)):
        if number >= unit:
            value = number / unit
            return f"{value:.0f}{letter}" if value.is_integer() else f"{value:.{digits}f}{letter}"
    return f"{number / 1000:.0f}K" if number >= 1000 else str(number)


def capabilities_of(template: str) -> list[str]:
    """What a chat template can do, judged by the variables it mentions."""
    found = ["completion"]
    if re.search(r"\btools\b", template):
        found.append("tools")
    if re.search(r"\benable_thinking\b", template):
        found.append("thinking")
    return found


def _parameter_counts(facts: Facts, moe: tuple[Any, ...]) -> tuple[int, int]:
    dense = sum(math.prod(item.shape) for item in _weights(facts))
    experts = sum(
        bank.num_experts * math.prod(part.shape) for bank in facts.banks for part in bank.parts
    )
    share = moe[0].router.num_experts_per_tok / moe[0].router.num_experts if moe else 1
    return dense + experts, dense + round(experts * share)


def _quantization(facts: Facts) -> str:
    named = _FILE_TYPES.get(facts.settings.get("general.file_type", -1))
    if facts.kind == "gguf" and named:
        return named
    weight: Counter[str] = Counter()
    for name, size in facts.types:
        weight[name] += size
    names = [name for name, _ in weight.most_common()]
    name = next((name for name in names if name in SCALE_FORMATS), next(iter(names), "unknown"))
    return _SHORT.get(name, name).upper()


def _model_info(facts: Facts, total: int) -> dict[str, Any]:
    """Settings as Ollama shows them: long lists left out, the parameter count added."""
    info = {
        key: None if isinstance(value, list) else value
        for key, value in facts.settings.items()
        if key != "tokenizer.chat_template"
    }
    info["general.parameter_count"] = total
    return dict(sorted(info.items()))


def _load_bytes(facts: Facts) -> int:
    """RAM for weights: bytes as stored, formats without a kernel at 2 bytes per element.

    A tied embedding counts twice: raw rows for the lookup, panels for the head.
    """
    return _dense_bytes(facts) + _expert_bytes(facts)


def _dense_bytes(facts: Facts) -> int:
    total = 0
    for item in _weights(facts):
        size = _resident_bytes(item)
        total += size + (item.bytes if item.name == "embed" and not _has_head(facts) else 0)
    return total


def _expert_bytes(facts: Facts) -> int:
    return sum(bank.num_experts * _expert_row_bytes(bank) for bank in facts.banks)


def _expert_row_bytes(bank: FtwBank) -> int:
    """Memory of one expert."""
    if all(part.layout != ROWS_LAYOUT for part in bank.parts):
        return bank.row_bytes
    return sum(math.prod(part.shape) for part in bank.parts) * _DEQUANTIZED_BYTES


def _weights(facts: Facts) -> list[FtwTensor]:
    """The dense tensors without the scales that belong to them."""
    beside = {name for item in facts.tensors for name in (item.scales, item.factor)}
    return [item for item in facts.tensors if item.name not in beside]


def _has_head(facts: Facts) -> bool:
    return any(item.name == "head" for item in facts.tensors)


def _resident_bytes(item: FtwTensor) -> int:
    if number_bytes(item.name):
        return number_bytes(item.name) * math.prod(item.shape)
    if item.format in SCALE_FORMATS:
        return panel32.packed_bytes(row_format(item.format), item.shape[0], item.shape[1])
    plain = panel32.supports(format_named(item.format))
    return item.bytes if plain else math.prod(item.shape) * _DEQUANTIZED_BYTES


def _reference_notes(facts: Facts) -> list[str]:
    parts = [part for bank in facts.banks for part in bank.parts if part.layout == ROWS_LAYOUT]
    names = {part.format for part in parts}
    names |= {t.format for t in _weights(facts) if not panel32.supports(row_format(t.format))}
    if not names:
        return []
    shown = ", ".join(sorted(names))
    return [f"no fast kernel yet for {shown}: dequantised to bf16 at load, more memory, slower"]

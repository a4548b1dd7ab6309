"""quant_method compressed-tensors: groups of modules, each with its own format.

Activation settings are read past: this engine multiplies weights with float activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.convert.quantised.scheme import (
    FP8_BLOCKS,
    FP8_WHOLE,
    INT4_PACKED,
    MXFP4_PACKED,
    NVFP4_PACKED,
    Matches,
    QuantPlan,
    Scheme,
    everything,
    names_or_patterns,
    refused,
    texts,
)
from ftengine.errors import LoadError
from ftengine.loader.stored import BLOCK

_CLASSES = ("Linear", "LinearBase")
_GROUP_LIMIT = 256
_GROUPED = {
    "mxfp4-pack-quantized": (MXFP4_PACKED, 32),
    "nvfp4-pack-quantized": (NVFP4_PACKED, 16),
}


def plan_of(value: Mapping[str, Any]) -> QuantPlan:
    """The plan of a compressed-tensors config. Raises: LoadError naming format and group."""
    groups = value.get("config_groups")
    if not isinstance(groups, dict) or not 0 < len(groups) <= _GROUP_LIMIT:
        raise LoadError("quantization_config: config_groups must be an object with groups")
    if value.get("sparsity_config") not in (None, {}):
        _check_dense(value["sparsity_config"])
    rules = []
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise LoadError(f"quantization_config: group {str(name)[:80]} must be an object")
        rules.append(_rule(str(name)[:80], group, value.get("format")))
    # A group that names its modules goes before one that means them all.
    rules.sort(key=lambda rule: rule[0] is everything)
    ignored = texts(value.get("ignore"), "ignore")
    return QuantPlan(tuple(rules), names_or_patterns(ignored, "ignore"))


def _check_dense(value: Any) -> None:
    kind = value.get("format") if isinstance(value, dict) else value
    if kind not in (None, "dense"):
        raise refused(f"compressed-tensors sparsity {str(kind)[:40]!r}")


def _rule(name: str, group: Mapping[str, Any], common: Any) -> tuple[Matches, Scheme]:
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise LoadError(f"quantization_config: weights of group {name} must be an object")
    fmt = group.get("format") or common
    if weights.get("symmetric") is False:
        raise refused(f"compressed-tensors format {str(fmt)[:40]} with zero points")
    return _targets(group, name), _scheme(str(fmt), weights)


def _scheme(fmt: str, weights: Mapping[str, Any]) -> Scheme:
    bits, kind = weights.get("num_bits"), weights.get("type")
    strategy, size = weights.get("strategy"), weights.get("group_size")
    shown = f"compressed-tensors format {fmt[:60]!r} ({kind} {bits} bit, {strategy})"
    if fmt == "pack-quantized":
        if bits != 4 or kind != "int" or weights.get("actorder") in ("group", "dynamic", True):
            raise refused(f"{shown} with actorder {str(weights.get('actorder'))[:20]}")
        return INT4_PACKED
    if fmt in _GROUPED:
        scheme, expected = _GROUPED[fmt]
        if bits != 4 or kind != "float" or size not in (None, expected):
            raise refused(f"{shown} with group_size {size}")
        return scheme
    if fmt not in ("float-quantized", "naive-quantized") or bits != 8 or kind != "float":
        raise refused(shown)
    if strategy in ("channel", "tensor"):
        return FP8_WHOLE
    if strategy == "block":
        block = weights.get("block_structure")
        if block not in ([BLOCK, BLOCK], f"{BLOCK}x{BLOCK}"):
            raise refused(f"{shown} with block_structure {str(block)[:40]}")
        return FP8_BLOCKS
    raise refused(shown)


def _targets(group: Mapping[str, Any], name: str) -> Matches:
    listed = texts(group.get("targets"), f"targets of group {name}")
    if not listed:
        raise LoadError(f"quantization_config: group {name} has no targets")
    if any(item in _CLASSES for item in listed):
        return everything
    return names_or_patterns(listed, f"targets of group {name}")

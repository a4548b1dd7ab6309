"""quant_method modelopt: NVFP4, FP8 per tensor, and MIXED_PRECISION with a list of modules.

The settings stand in config.json, in hf_quant_config.json, or in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.convert.quantised.scheme import (
    FP8_WHOLE,
    NVFP4_PACKED,
    Matches,
    QuantPlan,
    Scheme,
    everything,
    parents,
    refused,
    texts,
)
from ftengine.errors import LoadError

_GROUP = 16
_SCHEMES = {"NVFP4": NVFP4_PACKED, "FP8": FP8_WHOLE}
_BITS = {"float 4": "NVFP4", "float 8": "FP8"}
_MIXED = "MIXED_PRECISION"
_EXCLUDED = ("exclude_modules", "ignore")


def plan_of_hf(value: Mapping[str, Any]) -> QuantPlan:
    """The plan of hf_quant_config.json alone. Raises: LoadError naming what is not built."""
    return plan_of({}, value)


def plan_of(value: Mapping[str, Any], beside: Mapping[str, Any] | None) -> QuantPlan:
    """The plan of config.json's setting; what it lacks is taken from hf_quant_config.json.

    Raises: LoadError naming what is not built.
    """
    other = {} if beside is None else beside.get("quantization", {})
    if not isinstance(other, dict):
        raise LoadError("hf_quant_config.json: quantization must be an object")
    merged = {**other, **{key: item for key, item in value.items() if item is not None}}
    skipped = [name for key in _EXCLUDED for name in texts(merged.get(key), key)]
    algo = merged.get("quant_algo")
    rules = _mixed(merged) if algo == _MIXED else [(everything, _scheme(algo, merged))]
    return QuantPlan(tuple(rules), parents(skipped))


def _mixed(value: Mapping[str, Any]) -> list[tuple[Matches, Scheme]]:
    layers = value.get("quantized_layers")
    if layers is None and isinstance(value.get("config_groups"), dict):
        return _groups(value["config_groups"])
    if not isinstance(layers, dict) or not layers:
        raise LoadError(f"quantization_config: {_MIXED} needs an object quantized_layers")
    modules: dict[str, list[str]] = {}
    for name, entry in layers.items():
        if not isinstance(entry, dict):
            raise LoadError(f"quantization_config: quantized_layers {name[:80]} must be an object")
        algo = str(entry.get("quant_algo"))
        _scheme(algo, entry)
        modules.setdefault(algo, []).append(name)
    return [(parents(names), _SCHEMES[algo]) for algo, names in modules.items()]


def _groups(groups: Mapping[str, Any]) -> list[tuple[Matches, Scheme]]:
    rules = []
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise LoadError(f"quantization_config: weights of group {name[:80]} must be an object")
        kind, bits = weights.get("type"), weights.get("num_bits")
        algo = _BITS.get(f"{kind} {bits}")
        if algo is None:
            raise refused(
                f"modelopt {_MIXED} with weights of {str(kind)[:40]} {str(bits)[:40]} bit"
            )
        listed = texts(group.get("targets"), f"targets of group {name[:80]}")
        chosen = everything if "Linear" in listed else parents(listed)
        rules.append((chosen, _scheme(algo, weights)))
    rules.sort(key=lambda rule: rule[0] is everything)
    return rules


def _scheme(algo: Any, value: Mapping[str, Any]) -> Scheme:
    scheme = _SCHEMES.get(str(algo))
    if scheme is None:
        raise refused(f"modelopt quant_algo {str(algo)[:60]!r}")
    size = value.get("group_size")
    if scheme is NVFP4_PACKED and size not in (None, _GROUP):
        raise refused(f"modelopt NVFP4 with group_size {str(size)[:40]}")
    return scheme

"""quantization_config of a release -> QuantPlan, or a refusal by name before any header is read.

The dialect here: fp8 (DeepSeek, Qwen, GLM, MiniMax, and DeepSeek-V4's fp4 experts). The two larger
ones have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftengine.convert.quantised import compressed_tensors, modelopt
from ftengine.convert.quantised.scheme import (
    FP8_BLOCKS,
    FP8_WHOLE,
    MXFP4_PACKED,
    QuantPlan,
    everything,
    parents,
    refused,
    texts,
)
from ftengine.errors import LoadError
from ftengine.loader.stored import BLOCK

HF_QUANT_CONFIG = "hf_quant_config.json"
_INNER = ("text_config", "llm_config", "language_config")


def plan_of_config(
    config: Mapping[str, Any], beside: Callable[[], Mapping[str, Any] | None]
) -> QuantPlan | None:
    """The plan of a checkpoint, None where nothing is quantised.

    beside: reads hf_quant_config.json, None if there is none.
    Raises: LoadError naming what is not built or which key is wrong.
    """
    value = _find(config)
    if value is None:
        other = beside()
        return None if other is None else modelopt.plan_of_hf(other)
    method = value.get("quant_method")
    if method == "fp8":
        return _fp8_plan(value, config)
    if method == "compressed-tensors":
        return compressed_tensors.plan_of(value)
    if method == "modelopt":
        return modelopt.plan_of(value, beside())
    if method == "mxfp4":
        return QuantPlan(stacked=MXFP4_PACKED)
    raise refused(f"quant_method {str(method)[:80]!r}")


def _find(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The setting, at the top or with the text model of a wrapper."""
    inner = (config.get(key) for key in _INNER)
    for place in (config, *(item for item in inner if isinstance(item, dict))):
        value = place.get("quantization_config")
        if value is None:
            value = place.get("compression_config")
        if value in (None, {}):
            continue
        if not isinstance(value, dict):
            raise LoadError("config.json: quantization_config must be an object or null")
        return value
    return None


def _fp8_plan(value: Mapping[str, Any], config: Mapping[str, Any]) -> QuantPlan:
    fmt = value.get("fmt", "e4m3")
    if fmt not in ("e4m3", "float8_e4m3fn"):
        raise refused(f"quant_method fp8 with fmt {str(fmt)[:40]!r}")
    block = value.get("weight_block_size")
    if block not in (None, [BLOCK, BLOCK]):
        raise refused(f"quant_method fp8 with weight_block_size {str(block)[:40]}")
    skipped = [
        name
        for key in ("modules_to_not_convert", "ignored_layers")
        for name in texts(value.get(key), key)
    ]
    rules = [(everything, FP8_WHOLE if block is None else FP8_BLOCKS)]
    experts = config.get("expert_dtype")
    if experts == "fp4":
        rules.append((everything, MXFP4_PACKED))
    elif experts not in (None, "fp8"):
        raise refused(f"expert_dtype {str(experts)[:40]!r}")
    return QuantPlan(tuple(rules), parents(skipped))

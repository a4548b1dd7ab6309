"""Tiny checkpoints of many families as GGUF: names by the reference package's own tables.

Which settings go beside the weights stands in gguf_settings.py; what the reference converter does
to the weights in gguf_changes.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ftengine.quant import format_named
from tests.fakes.gguf_changes import GGUF_STEMS, Array, Config, changed
from tests.fakes.gguf_settings import full_layers, num_layers, rope_of, settings_of
from tests.fakes.tiny_gguf import write_tokenizer_fields

_FLOATS = ("_norm.weight", "conv1d.weight", "ffn_gate_inp.weight", "token_embd.weight")
"""Endings of tensors that converters keep as floats."""
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
GGUF_FAMILIES = {
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "dots1": gguf.MODEL_ARCH.DOTS1,
    "ernie4_5_moe": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "hunyuan_v1_moe": gguf.MODEL_ARCH.HUNYUAN_MOE,
    "bailing_moe_v2": gguf.MODEL_ARCH.BAILINGMOE2,
    "afmoe": gguf.MODEL_ARCH.AFMOE,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "qwen3_5": gguf.MODEL_ARCH.QWEN35,
    "qwen3_5_moe": gguf.MODEL_ARCH.QWEN35MOE,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v2_lite": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
    "kimi_k2": gguf.MODEL_ARCH.DEEPSEEK2,
    "glm4_moe_lite": gguf.MODEL_ARCH.DEEPSEEK2,
    "glm_moe_dsa": gguf.MODEL_ARCH.GLM_DSA,
    "mistral4": gguf.MODEL_ARCH.MISTRAL4,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phimoe": gguf.MODEL_ARCH.PHIMOE,
    "llama4": gguf.MODEL_ARCH.LLAMA4,
    "exaone_moe": gguf.MODEL_ARCH.EXAONE_MOE,
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H_MOE,
    "nemotron_h_super": gguf.MODEL_ARCH.NEMOTRON_H_MOE,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "granitemoeshared": gguf.MODEL_ARCH.GRANITE_MOE,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "mimo_v2_flash": gguf.MODEL_ARCH.MIMO2,
    "gemma4": gguf.MODEL_ARCH.GEMMA4,
    "gemma4_dense": gguf.MODEL_ARCH.GEMMA4,
    "jamba": gguf.MODEL_ARCH.JAMBA,
    "kimi_linear": gguf.MODEL_ARCH.KIMI_LINEAR,
    "deepseek_v32": gguf.MODEL_ARCH.GLM_DSA,
    "deepseek_v4": gguf.MODEL_ARCH.GLM_DSA,
    "hy_v3": gguf.MODEL_ARCH.DOTS1,
    "cohere2_moe": gguf.MODEL_ARCH.DOTS1,
    "minimax": gguf.MODEL_ARCH.MINIMAXM2,
    "minimax_m3": gguf.MODEL_ARCH.DOTS1,
    "bailing_hybrid": gguf.MODEL_ARCH.KIMI_LINEAR,
    "muse_glimmer": gguf.MODEL_ARCH.GEMMA3,
    "solar_open": gguf.MODEL_ARCH.GLM4_MOE,
}
"""Families written here, by the reference package's architecture."""
_NEWER = {
    "deepseek_v32": "deepseek32",
    "deepseek_v4": "deepseek4",
    "hy_v3": "hy_v3",
    "cohere2_moe": "cohere2moe",
    "minimax": "minimax-01",
    "minimax_m3": "minimax-m3",
    "bailing_hybrid": "bailingmoe3",
    "muse_glimmer": "muse-glimmer",
}
"""Architectures that the package does not know yet: they have tensors of those above, and the names
in gguf_changes.py.
"""
_SPLITS = {"glm4_moe_lite": "glm4", "solar_open": "solar-open"}
"""Split rules by which files of a shared architecture are told apart."""
_WRAPPER = re.compile(r"^(model\.language_model|language_model\.model)\.(?=\w)")
_TOWERS = ("vision_", "multi_modal_projector", "patch_merge_mlp")


@dataclass(frozen=True)
class Manner:
    """How a file is written. older: as converters did before; matrices: their format.

    rounded: matrices are written as floats, of the values that the format gives. experts: as mxfp4,
    by the reference package's own encoder.
    """

    older: bool = False
    matrices: str = "f32"
    rounded: bool = False
    experts: bool = False


PLAIN = Manner()


def write_family_gguf(family: str, source: Path, path: Path, manner: Manner = PLAIN) -> None:
    """Write the checkpoint of `source` as one GGUF file."""
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text("utf-8"))
    config |= config.get("text_config", {})
    arch = GGUF_FAMILIES[family]
    writer = gguf.GGUFWriter(path, _NEWER.get(family, gguf.MODEL_ARCH_NAMES[arch]))
    for key, value in settings_of(family, config, manner.older).items():
        _add(writer, f"{writer.arch}.{key}", value)
    write_tokenizer_fields(writer, _SPLITS.get(family, "smollm"))
    names = gguf.get_tensor_name_map(arch, num_layers(config))
    for name, stacked in _stacked(_text_only(load_file(source / "model.safetensors"))).items():
        for known, values in changed(family, name, stacked, config, older=manner.older):
            found = known
            if not known.startswith(GGUF_STEMS):
                found = names.get_name(known, try_suffixes=(".weight", ".bias"))
            assert found, f"{known} has no name in GGUF"
            _add_tensor(writer, found, values, manner)
    for name, numbers in _extra_tensors(config).items():
        writer.add_tensor(name, np.asarray(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Array, manner: Manner) -> None:
    values = np.ascontiguousarray(values, np.int32 if values.dtype.kind == "i" else np.float32)
    if manner.experts and name.endswith("_exps.weight"):
        kind = gguf.GGMLQuantizationType.MXFP4
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        return
    fmt = format_named(manner.matrices)
    whole = values.ndim > 1 and values.shape[-1] % fmt.block_elements == 0
    if manner.matrices == PLAIN.matrices or not whole or name.endswith(_FLOATS):
        writer.add_tensor(name, values)
        return
    raw = fmt.quantize(values)
    if manner.rounded:
        writer.add_tensor(name, fmt.dequantize(raw).reshape(values.shape))
    else:
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType(fmt.gguf_type))


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, "add_" + kinds[type(value)])(key, value)


def _text_only(weights: dict[str, Array]) -> dict[str, Array]:
    """The language model's weights, under their names outside of a wrapper."""
    return {
        _WRAPPER.sub("model.", name).removeprefix("language_model."): values
        for name, values in weights.items()
        if not name.removeprefix("model.").startswith(_TOWERS)
    }


def _stacked(weights: dict[str, Array]) -> dict[str, Array]:
    """Experts of a layer in one tensor."""
    found: dict[str, Array] = {}
    stacks: dict[str, dict[int, Array]] = {}
    for name, values in weights.items():
        expert = _EXPERT.fullmatch(name)
        if expert:
            part = expert[3] if "block_sparse_moe" in name else _PARTS.get(expert[3], expert[3])
            stem = re.sub(r"^backbone\.(layers\.\d+)\.mixer\.", r"model.\1.mlp.", expert[1])
            stacks.setdefault(f"{stem}.{part}.weight", {})[int(expert[2])] = values
        else:
            found[name] = values
    for name, parts in stacks.items():
        found[name] = np.stack([parts[number] for number in sorted(parts)])
    return found


def _extra_tensors(config: Config) -> dict[str, list[float]]:
    rope = rope_of(config)
    kinds = {"long_factor": "rope_factors_long", "short_factor": "rope_factors_short"}
    found = {f"{kinds[key]}.weight": rope[key] for key in kinds if key in rope}
    if rope.get("rope_type") == "proportional":
        size = full_layers(config)["head_dim"]
        turning = int(size * rope["partial_rotary_factor"] / 2)
        found["rope_freqs.weight"] = [1.0] * turning + [1e30] * (size // 2 - turning)
    return found

"""Tiny checkpoints of many families as GGUF: names by the reference package's own tables.

What is stored and which settings go beside it follows the reference converter: experts stacked, q
and k of families derived from llama permuted, correction vectors flat.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.fakes.tiny_gguf import permute, write_tokenizer_fields

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_SIGMOID = 2
_SETTINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "num_experts": (("uint32", "expert_count"),),
    "num_local_experts": (("uint32", "expert_count"),),
    "n_routed_experts": (("uint32", "expert_count"),),
    "moe_num_experts": (("uint32", "expert_count"),),
    "num_experts_per_tok": (("uint32", "expert_used_count"),),
    "moe_k": (("uint32", "expert_used_count"),),
    "moe_topk": (("uint32", "expert_used_count"),),
    "moe_intermediate_size": (("uint32", "expert_feed_forward_length"),),
    "shared_expert_intermediate_size": (("uint32", "expert_shared_feed_forward_length"),),
    "n_shared_experts": (("uint32", "expert_shared_count"),),
    "num_shared_experts": (("uint32", "expert_shared_count"),),
    "moe_num_shared_experts": (("uint32", "expert_shared_count"),),
    "first_k_dense_replace": (("uint32", "leading_dense_block_count"),),
    "num_dense_layers": (("uint32", "leading_dense_block_count"),),
    "moe_layer_start_index": (("uint32", "leading_dense_block_count"),),
    "moe_layer_interval": (("uint32", "interleave_moe_layer_step"),),
    "routed_scaling_factor": (("float32", "expert_weights_scale"),),
    "route_scale": (("float32", "expert_weights_scale"),),
    "norm_topk_prob": (("bool", "expert_weights_norm"),),
    "n_group": (("uint32", "expert_group_count"),),
    "topk_group": (("uint32", "expert_group_used_count"),),
    "sliding_window": (("uint32", "attention.sliding_window"),),
    "clip_qkv": (("float32", "attention.clamp_kqv"),),
    "attention_multiplier": (("float32", "attention.scale"),),
    "embedding_multiplier": (("float32", "embedding_scale"),),
    "residual_multiplier": (("float32", "residual_scale"),),
    "logits_scaling": (("float32", "logit_scale"),),
}
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
}
"""Families written here, by the reference package's architecture."""


def write_family_gguf(family: str, source: Path, path: Path) -> None:
    """Write the checkpoint of `source` as one GGUF file."""
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text("utf-8"))
    arch = GGUF_FAMILIES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _write_settings(writer, config)
    write_tokenizer_fields(writer, "smollm")
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, values in _stacked(load_file(source / "model.safetensors"), family, config).items():
        found = names.get_name(_known_to_the_tables(name), try_suffixes=(".weight", ".bias"))
        assert found, f"{name} has no name in GGUF"
        writer.add_tensor(found, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _known_to_the_tables(name: str) -> str:
    """Vectors beside the router stand in the tables with an ending of their own."""
    name = re.sub(r"e_score_correction_bias$", "e_score_correction.bias", name)
    return re.sub(r"expert_bias$", "expert_bias.bias", name)


def _stacked(
    weights: dict[str, npt.NDArray[Any]], family: str, config: dict[str, Any]
) -> dict[str, npt.NDArray[Any]]:
    found: dict[str, npt.NDArray[Any]] = {}
    stacks: dict[str, dict[int, npt.NDArray[Any]]] = {}
    for name, values in weights.items():
        expert = _EXPERT.fullmatch(name)
        if expert:
            part = expert[3] if "block_sparse_moe" in name else _PARTS.get(expert[3], expert[3])
            stacks.setdefault(f"{expert[1]}.{part}.weight", {})[int(expert[2])] = values
        elif name.endswith("block_sparse_moe.input_linear.weight"):
            stem, half = name.removesuffix("input_linear.weight"), values.shape[1] // 2
            found[stem + "experts.w1.weight"] = np.ascontiguousarray(values[:, :half])
            found[stem + "experts.w3.weight"] = np.ascontiguousarray(values[:, half:])
        elif family == "granitemoe" and name.endswith(("q_proj.weight", "k_proj.weight")):
            key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            found[name] = permute(values, config[key])
        else:
            found[name] = values.reshape(-1) if name.endswith("correction_bias") else values
    for name, parts in stacks.items():
        found[name] = np.stack([parts[number] for number in sorted(parts)])
    return found


def _write_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = rope["rope_theta"]
    if rope.get("alpha"):
        theta *= rope["alpha"] ** (head_dim / (head_dim - 2))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(theta)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_vocab_size(config["vocab_size"])
    if writer.arch == "minimax-m2":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    for key, rows in _SETTINGS.items():
        for kind, name in rows:
            if config.get(key) is not None:
                full = f"{writer.arch}.{name}"
                getattr(writer, f"add_{kind}")(full, config[key])
    if config.get("routed_scaling_factor") or config.get("route_scale"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType(_SIGMOID))

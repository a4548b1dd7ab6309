"""Tiny random models of families with states, windows, sinks and shared experts.

Built by the reference library from its own config classes, so names and configs are what it writes.
Windows, kernels and clamps are so small that a short prompt crosses them; every norm, bias, sink
and decay is random, so that a missing one shows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tests.fakes.tiny_models import write_tokenizer
from tests.fakes.tiny_routed import ROUTED_MODELS, released_config
from tests.fakes.tiny_sparse import SPARSE_MODELS, released_name

_BASE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_GDN: dict[str, Any] = {
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            "head_dim": 16,
            "intermediate_size": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": 12,
            "swiglu_limit": 1.5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 8.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**_GDN, **_EXPERTS, "intermediate_size": 96, "mlp_only_layers": [1]},
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", {**_GDN, "intermediate_size": 96}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", {**_GDN, **_EXPERTS}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "intermediate_size": 96,
            "query_pre_attn_scalar": 24,
            "sliding_window": 12,
            "tie_word_embeddings": True,
            "final_logit_softcapping": 20.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "sliding_attention": _ROPE,
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "lfm2_moe": (
        "Lfm2MoeForCausalLM",
        "Lfm2MoeConfig",
        {
            "intermediate_size": 96,
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "conv_L_cache": 3,
            "tie_word_embeddings": True,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "rope_parameters": _ROPE,
        },
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {
            "intermediate_size": 32,
            "shared_intermediate_size": 48,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "embedding_multiplier": 2.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 1.3,
            "attention_multiplier": 0.1,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
            "tie_word_embeddings": True,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
}
_MODELS |= SPARSE_MODELS | ROUTED_MODELS
HYBRIDS = tuple(_MODELS)
"""Families built here."""
_RANDOM_BUFFERS = ("e_score_correction_bias", "layer_scalar")


def build_hybrid(
    family: str,
    folder: Path,
    seed: int = 0,
    dtype: str = "float32",
    *,
    hub_names: bool = True,
    wrapped: bool = False,
    changes: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint folder with tokenizer and template; returns `folder`.

    hub_names: as released, else as the library keeps experts in memory. wrapped: inside a
    vision-language config, weights below `model.language_model`.
    """
    import torch
    import transformers

    architecture, config_class, settings = _MODELS[family]
    given = {**_BASE, **settings, **(changes or {})}
    if "text_config" in settings:
        inner = {**_BASE, **settings["text_config"], **(changes or {})}
        given = {**settings, "text_config": inner}
    config = getattr(transformers, config_class)(**given)
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config).to(getattr(torch, dtype))
    with torch.no_grad():
        buffers = [item for item in model.named_buffers() if item[0].endswith(_RANDOM_BUFFERS)]
        for name, values in (*model.named_parameters(), *buffers):
            _randomise(name, values, config.tie_word_embeddings)
        for name, values in model.named_buffers():
            if name.endswith("tid2eid"):
                rows = [torch.randperm(config.n_routed_experts) for _ in range(values.shape[0])]
                values.copy_(torch.stack(rows)[:, : values.shape[1]])
    model.save_pretrained(folder, save_original_format=hub_names)
    if hub_names:
        _rename(folder, family)
    released_config(family, folder)
    write_tokenizer(folder)
    if wrapped:
        _wrap(folder, architecture)
    return folder


def _rename(folder: Path, family: str) -> None:
    """Give the weights the names of releases, where the library saves others."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    names = {name: released_name(family, name) for name in weights}
    if any(name != new for name, new in names.items()):
        renamed = {names[name]: values for name, values in weights.items()}
        save_file(renamed, path, metadata={"format": "pt"})


def _randomise(name: str, values: Any, tied: bool) -> None:
    import torch

    noise = torch.randn(values.shape, dtype=torch.float32)
    if name.endswith("A_log"):
        noise = torch.rand(values.shape).mul(4).add(0.2).log()
    elif values.ndim == 1:
        noise = values.float() + 0.2 * noise  # norms, biases, sinks, corrections
    elif "embed" in name:
        noise = (0.3 if tied else 2.0) * noise
    elif "conv" in name and values.ndim == 3:
        noise = 0.5 * noise
    else:
        noise = noise / math.sqrt(values.shape[-1])
    values.copy_(noise)


def _wrap(folder: Path, architecture: str) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "config.json"
    inner = json.loads(path.read_text("utf-8"))
    outer = {
        "architectures": [architecture.replace("ForCausalLM", "ForConditionalGeneration")],
        "model_type": inner["model_type"].removesuffix("_text"),
        "tie_word_embeddings": inner.get("tie_word_embeddings", False),
        "text_config": inner,
        "vision_config": {"hidden_size": 8},
    }
    path.write_text(json.dumps(outer), "utf-8")
    weights = folder / "model.safetensors"
    renamed = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: w
        for name, w in load_file(weights).items()
    }
    renamed["model.visual.patch_embed.proj.weight"] = next(iter(renamed.values())).clone()
    save_file(renamed, weights, metadata={"format": "pt"})

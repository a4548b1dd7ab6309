"""Settings of tiny models with routed experts of many kinds: (class, config, values).

tiny_hybrids.py builds them. Windows, chunks and bounds are so small that a short prompt crosses
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SMALL: dict[str, Any] = {"num_hidden_layers": 3, "rope_parameters": _ROPE}
_EXPERTS: dict[str, Any] = {
    **_SMALL,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
_ROUTED: dict[str, Any] = {
    **{key: value for key, value in _EXPERTS.items() if key != "num_experts"},
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
}
_GRANITE: dict[str, Any] = {
    **_SMALL,
    "intermediate_size": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "embedding_multiplier": 2.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 1.3,
    "attention_multiplier": 0.1,
    "tie_word_embeddings": True,
}

_KDA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "model_max_length": 512,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}

_NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": None,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "mlp"],
    "head_dim": 16,
    "intermediate_size": 96,
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
}

ROUTED_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**_SMALL, "intermediate_size": 96}),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**_SMALL, "intermediate_size": 96, "head_dim": 16, "sliding_window": 12},
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**_EXPERTS, "shared_expert_intermediate_size": 48, "mlp_only_layers": [0]},
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        "OlmoeConfig",
        {
            **_SMALL,
            "intermediate_size": 32,
            "num_key_value_heads": 4,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "clip_qkv": 1.5,
        },
    ),
    "flex_olmo": (
        "FlexOlmoForCausalLM",
        "FlexOlmoConfig",
        {
            **_SMALL,
            "intermediate_size": 32,
            "num_key_value_heads": 4,
            "num_experts": 7,
            "num_experts_per_tok": 5,
        },
    ),
    "granitemoe": ("GraniteMoeForCausalLM", "GraniteMoeConfig", _GRANITE),
    "granitemoeshared": (
        "GraniteMoeSharedForCausalLM",
        "GraniteMoeSharedConfig",
        {**_GRANITE, "shared_intermediate_size": 48},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeForCausalLM",
        "Ernie4_5_MoeConfig",
        {
            **_SMALL,
            "intermediate_size": 96,
            "moe_intermediate_size": 32,
            "moe_k": 3,
            "moe_num_experts": 8,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "tie_word_embeddings": True,
        },
    ),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1ForCausalLM",
        "HunYuanMoEV1Config",
        {
            "num_hidden_layers": 3,
            "intermediate_size": 48,
            "num_experts": 8,
            "moe_topk": 3,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 1000.0,
                "factor": 1.0,
                "rope_theta": 10000.0,
            },
        },
    ),
    "dots1": (
        "Dots1ForCausalLM",
        "Dots1Config",
        {**_ROUTED, "num_key_value_heads": 4, "n_shared_experts": 2, "norm_topk_prob": True},
    ),
    "hy_v3": (
        "HYV3ForCausalLM",
        "HYV3Config",
        {**_EXPERTS, "head_dim": 16, "num_shared_experts": 1, "router_scaling_factor": 2.826},
    ),
    "afmoe": (
        "AfmoeForCausalLM",
        "AfmoeConfig",
        {
            **_EXPERTS,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_dense_layers": 1,
            "num_shared_experts": 1,
            "route_scale": 2.5,
            "sliding_window": 12,
            "mup_enabled": True,
        },
    ),
    "exaone_moe": (
        "ExaoneMoeForCausalLM",
        "ExaoneMoeConfig",
        {
            **_EXPERTS,
            "num_hidden_layers": 4,
            "num_shared_experts": 1,
            "sliding_window": 12,
            "routed_scaling_factor": 2.5,
        },
    ),
    "bailing_moe_v2": (
        "Glm4MoeForCausalLM",
        "SarvamMoEConfig",
        {
            **_ROUTED,
            "head_dim": 16,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
        },
    ),
    "phimoe": (
        "PhimoeForCausalLM",
        "PhimoeConfig",
        {
            **_SMALL,
            "intermediate_size": 48,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "lm_head_bias": True,
            "router_jitter_noise": 0.2,
        },
    ),
    "cohere2_moe": (
        "Cohere2MoeForCausalLM",
        "Cohere2MoeConfig",
        {
            **_EXPERTS,
            "num_hidden_layers": 5,
            "intermediate_size": 32,
            "head_dim": 16,
            "num_shared_experts": 1,
            "expert_selection_fn": "sigmoid",
            "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": 96,
            "sliding_window": 12,
            "logit_scale": 2.0,
            "tie_word_embeddings": True,
        },
    ),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            **_SMALL,
            "num_hidden_layers": 4,
            "intermediate_size": 32,
            "intermediate_size_mlp": 96,
            "head_dim": 16,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 16,
            "no_rope_layer_interval": 4,
            "floor_scale": 16,
        },
    ),
    "jamba": (
        "JambaForCausalLM",
        "JambaConfig",
        {
            "num_hidden_layers": 4,
            "intermediate_size": 48,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
            "use_mamba_kernels": False,
        },
    ),
    "nemotron_h": ("NemotronHForCausalLM", "NemotronHConfig", _NEMOTRON),
    "nemotron_h_super": (
        "NemotronHForCausalLM",
        "NemotronHConfig",
        {**_NEMOTRON, "moe_latent_size": 32, "use_bias": True, "n_group": 2, "topk_group": 1},
    ),
    "minimax": (
        "MiniMaxForCausalLM",
        "MiniMaxConfig",
        {
            "num_hidden_layers": 4,
            "intermediate_size": 48,
            "head_dim": 16,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "block_size": 16,
            "layer_types": [*["linear_attention"] * 3, "full_attention"],
            "full_attn_alpha_factor": 3.5,
            "linear_attn_alpha_factor": 3.5,
            "mlp_alpha_factor": 3.5,
            "rope_parameters": _ROPE,
        },
    ),
    "kimi_linear": (
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {
            **_KDA,
            "routed_scaling_factor": 2.446,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": [*["linear_attention"] * 3, "full_attention"],
        },
    ),
    "bailing_hybrid": (
        "BailingHybridForCausalLM",
        "BailingHybridConfig",
        {
            **_KDA,
            "num_expert_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "layer_group_size": 4,
            "rope_theta": 10000.0,
            "num_nextn_predict_layers": 0,
        },
    ),
    "muse_glimmer": (
        "MuseGlimmerForConditionalGeneration",
        "MuseGlimmerConfig",
        {
            "image_token_id": 315,
            "tie_word_embeddings": False,
            "video_token_id": 316,
            "out_hidden_size": 128,
            "projector_hidden_size": 32,
            "vision_config": {
                "patch_size": 4,
                "pos_emb_height": 4,
                "pos_emb_width": 4,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "hidden_size": 32,
                "intermediate_size": 32,
                "max_position_embeddings": 16,
            },
            "text_config": {
                **_SMALL,
                "num_hidden_layers": 5,
                "intermediate_size": 96,
                "head_dim": 16,
                "sliding_window": 12,
            },
        },
    ),
    "solar_open": (
        "SolarOpenForCausalLM",
        "SolarOpenConfig",
        {**_ROUTED, "head_dim": 16, "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0}},
    ),
}

_RELEASED: dict[str, dict[str, Any]] = {
    "bailing_moe_v2": {"architectures": ["SarvamMoEForCausalLM"]},
}
"""Where releases say other things than the library saves."""


def released_config(family: str, folder: Path) -> None:
    """Give config.json the class names of releases."""
    changes = _RELEASED.get(family)
    if changes is None:
        return
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")

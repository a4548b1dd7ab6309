"""Settings of tiny models whose attention is latent, sparse or windowed: (class, config, values).

tiny_hybrids.py builds them. Windows, groups and choices are so small that a short prompt crosses
them.
"""

from __future__ import annotations

import re
from typing import Any

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LATENT: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
_ONE_GROUP = {"n_group": 1, "topk_group": 1}
_INDEX = {"index_topk": 6, "index_head_dim": 16, "index_n_heads": 16}
_NO_FIRST = {key: value for key, value in _LATENT.items() if key != "first_k_dense_replace"}
_V2_YARN = {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
_V2: dict[str, Any] = {
    **_LATENT,
    "norm_topk_prob": False,
    "n_shared_experts": 2,
    "rope_parameters": _V2_YARN,
}
_KIMI_YARN = {**_YARN, "rope_theta": 50000.0, "beta_fast": 1.0}
_WINDOWED, _FULL = "sliding_attention", "full_attention"
_CHOSEN, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_DEEP: dict[str, Any] = {
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "tie_word_embeddings": False,
}
_GEMMA4: dict[str, Any] = {
    "intermediate_size": 48,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "sliding_window": 12,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "layer_types": [_WINDOWED, _WINDOWED, _WINDOWED, _FULL],
}
_GEMMA4_EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
_MINIMAX_M3: dict[str, Any] = {
    "num_hidden_layers": 4,
    "intermediate_size": 32,
    "dense_intermediate_size": 96,
    "shared_intermediate_size": 32,
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rotary_dim": 8,
    "swiglu_limit": 1.5,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_block_size": 4,
    "index_topk_blocks": 3,
    "index_local_blocks": 1,
    "routed_scaling_factor": 2.0,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "layer_types": [_FULL, "minimax_m3_sparse", "minimax_m3_sparse", _FULL],
    "tie_word_embeddings": False,
    "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
}
_EYE = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
}

SPARSE_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {**_V2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0},
    ),
    "deepseek_v2_lite": (
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {**_V2, **_ONE_GROUP, "q_lora_rank": None, "routed_scaling_factor": 1.0},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**_LATENT, "rope_parameters": _YARN},
    ),
    "kimi_k2": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**_LATENT, **_ONE_GROUP, "routed_scaling_factor": 2.827, "rope_parameters": _KIMI_YARN},
    ),
    "deepseek_v32": (
        "DeepseekV32ForCausalLM",
        "DeepseekV32Config",
        {**_LATENT, **_INDEX, "rope_parameters": _YARN},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteForCausalLM",
        "Glm4MoeLiteConfig",
        {**_NO_FIRST, **_ONE_GROUP, "routed_scaling_factor": 1.8, "rope_parameters": _ROPE},
    ),
    "glm_moe_dsa": (
        "GlmMoeDsaForCausalLM",
        "GlmMoeDsaConfig",
        {
            **_LATENT,
            **_ONE_GROUP,
            **_INDEX,
            "num_hidden_layers": 5,
            "indexer_types": ["full", "full", "shared", "full", "shared"],
            "rope_parameters": _ROPE,
        },
    ),
    "mistral4": (
        "Mistral4ForCausalLM",
        "Mistral4Config",
        {
            **_LATENT,
            **_ONE_GROUP,
            "routed_scaling_factor": 1.0,
            "first_k_dense_replace": 0,
            "rope_parameters": {
                **_YARN,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        {
            **_DEEP,
            "head_dim": 16,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
        },
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        "MiniMaxM2Config",
        {
            "num_hidden_layers": 3,
            "head_dim": 16,
            "intermediate_size": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "tie_word_embeddings": False,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
        },
    ),
    "mimo_v2_flash": (
        "MiMoV2FlashForCausalLM",
        "MiMoV2FlashConfig",
        {
            **_DEEP,
            "num_hidden_layers": 4,
            "head_dim": 24,
            "v_head_dim": 16,
            "sliding_window": 12,
            "layer_types": [_FULL, _WINDOWED, _WINDOWED, _FULL],
            "rope_parameters": {
                _FULL: {**_ROPE, "rope_theta": 50000.0, "partial_rotary_factor": 0.334},
                _WINDOWED: {**_ROPE, "partial_rotary_factor": 0.334},
            },
        },
    ),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4TextConfig", {**_GEMMA4, **_GEMMA4_EXPERTS}),
    "gemma4_dense": ("Gemma4ForCausalLM", "Gemma4TextConfig", _GEMMA4),
    "longcat_flash": (
        "LongcatFlashForCausalLM",
        "LongcatFlashConfig",
        {
            "num_layers": 2,
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "head_dim": 8,
            "v_head_dim": 16,
            "ffn_hidden_size": 96,
            "expert_ffn_hidden_size": 32,
            "n_routed_experts": 8,
            "zero_expert_num": 4,
            "moe_topk": 3,
            "routed_scaling_factor": 6.0,
            "tie_word_embeddings": False,
            "rope_parameters": _ROPE,
        },
    ),
    "minimax_m3": (
        "MiniMaxM3SparseForConditionalGeneration",
        "MiniMaxM3VLConfig",
        {
            "image_token_index": 315,
            "video_token_index": 316,
            "projector_hidden_size": 32,
            "tie_word_embeddings": False,
            "vision_config": {**_EYE, "image_size": 16},
            "text_config": _MINIMAX_M3,
        },
    ),
    "kimi_k25": (
        "Kimi_K25ForConditionalGeneration",
        "Kimi_K25Config",
        {
            "image_token_id": 315,
            "video_token_id": 316,
            "vision_start_token_id": 317,
            "vision_end_token_id": 318,
            "projection_hidden_size": 32,
            "tie_word_embeddings": False,
            "vision_config": {**_EYE, "pos_emb_height": 4, "pos_emb_width": 4},
            "text_config": {
                **_LATENT,
                **_ONE_GROUP,
                "model_type": "deepseek_v3",
                "routed_scaling_factor": 2.827,
                "rope_parameters": _KIMI_YARN,
            },
        },
    ),
    "deepseek_v4": (
        "DeepseekV4ForCausalLM",
        "DeepseekV4Config",
        {
            "moe_intermediate_size": 32,
            "num_hidden_layers": 5,
            "head_dim": 32,
            "q_lora_rank": 32,
            "num_experts_per_tok": 2,
            "n_routed_experts": 8,
            "routed_scaling_factor": 1.5,
            "swiglu_limit": 1.5,
            "sliding_window": 12,
            "o_groups": 2,
            "o_lora_rank": 16,
            "index_n_heads": 16,
            "index_head_dim": 16,
            "index_topk": 3,
            "num_hash_layers": 2,
            "num_nextn_predict_layers": 0,
            "tie_word_embeddings": False,
            "qk_rope_head_dim": 8,
            "compress_rates": {_CHOSEN: 4, _HEAVY: 16},
            "layer_types": [_WINDOWED, _HEAVY, _CHOSEN, _HEAVY, _CHOSEN],
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32,
                "beta_slow": 1,
            },
        },
    ),
}

_HUB_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "kimi_k25": ((r"^language_model\.model\.blocks\.", "language_model.model.layers."),),
    "deepseek_v4": (
        (r"^(model\.)?embed_tokens\.", "embed."),
        (r"^model\.hc_head\.hc_", "hc_head_"),
        (r"^model\.", ""),
        (r"\.attn\.norm\.weight", ".attn.kv_norm.weight"),
    ),
}
"""Where the library saves other names than releases have: pattern and replacement."""


VARIANTS = ("deepseek_v2_lite", "kimi_k2", "gemma4_dense", "nemotron_h_super")
"""Other settings of a family that is here too; for the long form of the tests."""


def released_name(family: str, name: str) -> str:
    """The name of a tensor in released files, of the one that the library saves."""
    for pattern, replacement in _HUB_NAMES.get(family, ()):
        name = re.sub(pattern, replacement, name)
    return name

"""The key-values that the reference converter writes beside the weights, from config.json.

By family; tiny_gguf_families.py writes the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.fakes.gguf_changes import Config

_SOFTMAX, _SIGMOID, _SQRT_SOFTPLUS = 1, 2, 4
_SETTINGS = {
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "moe_num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_k": "expert_used_count",
    "moe_topk": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "num_shared_experts": "expert_shared_count",
    "moe_num_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "num_dense_layers": "leading_dense_block_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "routed_scaling_factor": "expert_weights_scale",
    "route_scale": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "sliding_window": "attention.sliding_window",
    "clip_qkv": "attention.clamp_kqv",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "final_logit_softcapping": "final_logit_softcapping",
    "conv_L_cache": "shortconv.l_cache",
    "moe_latent_size": "moe_latent_size",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "intermediate_size": "feed_forward_length",
}
"""Keys of config.json whose values are copied; later ones replace earlier ones."""


def full_layers(config: Config) -> Config:
    """What Gemma 4 says of its full layers."""
    found: Config = next(iter(config["per_layer_config"].values()))
    return found


def rope_of(config: Config) -> Config:
    """The rope of full layers, or of all."""
    rope = config.get("rope_parameters") or {}
    found: Config = rope.get("full_attention", rope)
    return found


def settings_of(family: str, config: Config, older: bool) -> Config:
    """Below the architecture's name."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = rope_of(config)
    theta = rope.get("rope_theta", 10000.0)
    if rope.get("alpha"):
        theta *= rope["alpha"] ** (head_dim / (head_dim - 2))
    partial = rope.get("partial_rotary_factor", 1.0)
    found: Config = {
        "context_length": config.get("max_position_embeddings") or config["model_max_length"],
        "embedding_length": config["hidden_size"],
        "block_count": num_layers(config),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        **_epsilon(config),
        "rope.freq_base": float(theta),
        "rope.dimension_count": int(head_dim * partial),
        "vocab_size": config["vocab_size"],
    }
    found |= {new: config[key] for key, new in _SETTINGS.items() if config.get(key) is not None}
    if config.get("routed_scaling_factor") or config.get("route_scale"):
        found["expert_gating_func"] = _SIGMOID
    found |= _scaling(rope)
    found |= _MORE[family](config) if family in _MORE else {}
    return {**found, **_before(config, found)} if older else found


def _epsilon(config: Config) -> Config:
    eps = config.get("rms_norm_eps", config.get("norm_eps"))
    if eps is None and config.get("layer_norm_eps"):
        return {"attention.layer_norm_epsilon": config["layer_norm_eps"]}
    return {"attention.layer_norm_rms_epsilon": eps}


def _before(config: Config, found: Config) -> Config:
    """What files of before say, where it differs."""
    if "attention.key_length_mla" not in found:
        return {}
    found.pop("attention.indexer.types", None)
    return {
        "attention.key_length": found.pop("attention.key_length_mla"),
        "attention.value_length": found.pop("attention.value_length_mla"),
        "attention.head_count_kv": config["num_attention_heads"],
    }


def num_layers(config: Config) -> int:
    """Layers in one of two dialects."""
    return config.get("num_hidden_layers") or len(config["layers_block_type"])


def _scaling(rope: Config) -> Config:
    kind = rope.get("rope_type")
    if kind not in ("yarn", "linear"):
        return {}
    found = {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        for name in ("beta_fast", "beta_slow"):
            found[f"rope.scaling.yarn_{name}"] = float(rope[name])
    return found


def _latent(config: Config) -> Config:
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    found = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotated,
    }
    if "mlp_layer_types" in config:
        found["leading_dense_block_count"] = config["mlp_layer_types"].count("dense")
    if "mscale_all_dim" in rope_of(config):
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope_of(config)["mscale_all_dim"]
    return found


def _latent_softmax(config: Config) -> Config:
    return {**_latent(config), "expert_gating_func": _SOFTMAX}


def _glm_dsa(config: Config) -> Config:
    types = [kind == "full" for kind in config["indexer_types"]]
    return {**_latent(config), "attention.indexer.types": types}


def _delta(config: Config) -> Config:
    heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
        "full_attention_interval": 4,
    }


def _delta_sections(config: Config) -> Config:
    return {**_delta(config), "rope.dimension_sections": [11, 11, 10, 0]}


def _windows(config: Config) -> Iterator[bool]:
    return (kind == "sliding_attention" for kind in config["layer_types"])


def _of_layers(config: Config, key: str, *kinds: str) -> list[int]:
    """A number for layers of these kinds, 0 for others."""
    listed = config.get("layer_types") or config["layers_block_type"]
    return [config[key] if kind in kinds else 0 for kind in listed]


def _gpt_oss(config: Config) -> Config:
    return {"expert_feed_forward_length": config["intermediate_size"]}


def _gemma3(config: Config) -> Config:
    windowed = config["rope_parameters"]["sliding_attention"]
    return {"rope.freq_base_swa": windowed["rope_theta"]}


def _phimoe(config: Config) -> Config:
    rope = rope_of(config)
    if rope.get("rope_type") != "longrope":
        return {}
    return {
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.attn_factor": rope["long_mscale"],
    }


def _llama4(config: Config) -> Config:
    return {
        "expert_feed_forward_length": config["intermediate_size"],
        "feed_forward_length": config["intermediate_size_mlp"],
    }


def _exaone(config: Config) -> Config:
    return {
        "attention.sliding_window_pattern": list(_windows(config)),
        "rope.scaling.type": "none",
        "nextn_predict_layers": 0,
    }


def _nemotron(config: Config) -> Config:
    heads = config["mamba_num_heads"]
    return {
        "attention.head_count_kv": _of_layers(
            config, "num_key_value_heads", "full_attention", "attention"
        ),
        "feed_forward_length": _of_layers(config, "moe_intermediate_size", "moe"),
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"] // 2,
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["mamba_head_dim"],
    }


def _lfm2(config: Config) -> Config:
    return {
        "attention.head_count_kv": _of_layers(config, "num_key_value_heads", "full_attention"),
        "expert_gating_func": _SIGMOID,
    }


def _granite_hybrid(config: Config) -> Config:
    heads = config["mamba_n_heads"]
    return {
        "attention.head_count_kv": _of_layers(config, "num_key_value_heads", "full_attention"),
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["mamba_d_head"],
    }


def _mimo(config: Config) -> Config:
    both = (2 * config["num_key_value_heads"], config["num_key_value_heads"])
    windowed = config["rope_parameters"]["sliding_attention"]
    return {
        "attention.head_count_kv": [both[0 if is_short else 1] for is_short in _windows(config)],
        "attention.sliding_window_pattern": [int(is_short) for is_short in _windows(config)],
        # releases count the tokens before a token, the library counts it too
        "attention.sliding_window": config["sliding_window"] - 1,
        "attention.value_length": config["v_head_dim"],
        "attention.value_scale": config.get("attention_value_scale", 0.707),
        "rope.freq_base_swa": windowed["rope_theta"],
    }


def _gemma4(config: Config) -> Config:
    full, size = full_layers(config), config["head_dim"]
    windows = list(_windows(config))
    kv_heads = (full["num_key_value_heads"], config["num_key_value_heads"])
    return {
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": size,
        "attention.value_length_swa": size,
        "attention.head_count_kv": [kv_heads[is_short] for is_short in windows],
        "attention.sliding_window_pattern": windows,
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": size,
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "expert_used_count": config["top_k_experts"] or 0,
    }


def _jamba(config: Config) -> Config:
    every, first = config["attn_layer_period"], config["attn_layer_offset"]
    return {
        "attention.head_count_kv": [
            config["num_key_value_heads"] if layer % every == first else 0
            for layer in range(config["num_hidden_layers"])
        ],
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_dt_rank"],
    }


def _kimi_linear(config: Config) -> Config:
    kinds = config["layer_types"]
    return {
        **_latent(config),
        "attention.head_count_kv": [int(kind == "full_attention") for kind in kinds],
        "expert_used_count": config["num_experts_per_token"],
        "kda.head_dim": config["linear_head_dim"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
    }


_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


def _deepseek4(config: Config) -> Config:
    count, rope = config["num_hidden_layers"], config["rope_parameters"]
    limits = [config["swiglu_limit"]] * count
    return {
        **_scaling(rope["compress"]),
        "rope.freq_base": rope["main"]["rope_theta"],
        "rope.dimension_count": config["qk_rope_head_dim"],
        "attention.output_group_count": config["o_groups"],
        "attention.output_lora_rank": config["o_lora_rank"],
        "attention.compress_ratios": [_RATIOS[kind] for kind in config["layer_types"]],
        "attention.compress_rope_freq_base": rope["compress"]["rope_theta"],
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "hyper_connection.epsilon": config["hc_eps"],
        "hash_layer_count": config["mlp_layer_types"].count("hash_moe"),
        "expert_gating_func": _SQRT_SOFTPLUS,
        "swiglu_clamp_exp": limits,
        "swiglu_clamp_shexp": limits,
        "embedding_length_out": config["hidden_size"] * config["hc_mult"],
    }


def _hy3(config: Config) -> Config:
    width = config["moe_intermediate_size"]
    return {
        "expert_shared_feed_forward_length": width * config["num_shared_experts"],
        "expert_weights_scale": config["router_scaling_factor"],
        "expert_weights_norm": True,
        "expert_gating_func": _SIGMOID,
    }


def _afmoe(_: Config) -> Config:
    return {"expert_weights_norm": True}


def _cohere2(config: Config) -> Config:
    scores = {"softmax": _SOFTMAX, "sigmoid": _SIGMOID}
    return {
        "feed_forward_length": config["prefix_dense_intermediate_size"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "expert_gating_func": scores[config["expert_selection_fn"]],
        "attention.sliding_window_pattern": list(_windows(config)),
        "logit_scale": config["logit_scale"],
        "rope.scaling.type": "none",
    }


def _minimax(config: Config) -> Config:
    return {"residual_scale": config["mlp_alpha_factor"]}


def _minimax3(config: Config) -> Config:
    return {
        "feed_forward_length": config["dense_intermediate_size"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk_blocks"],
        "attention.indexer.block_size": config["index_block_size"],
        "attention.indexer.local_blocks": config["index_local_blocks"],
    }


def _bailing3(config: Config) -> Config:
    limits = {"expert": "swiglu_clamp_exp", "share_expert": "swiglu_clamp_shexp"}
    return {
        **_kimi_linear(config),
        "kda.safe_gate": True,
        "kda.gate_lower_bound": config["kda_lower_bound"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_norm": True,
        **{
            new: [float(limit or 0) for limit in config[f"{old}_swiglu_limit_list"]]
            for old, new in limits.items()
            if f"{old}_swiglu_limit_list" in config
        },
    }


def _muse(config: Config) -> Config:
    return {
        "attention.sliding_window_pattern": list(_windows(config)),
        "logit_scale": config["output_multiplier"],
    }


_MORE: dict[str, Callable[[Config], Config]] = {
    "minimax_m2": _gpt_oss,
    "qwen3_next": _delta,
    "qwen3_5": _delta_sections,
    "qwen3_5_moe": _delta_sections,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _latent_softmax,
    "deepseek_v2_lite": _latent_softmax,
    "deepseek_v3": _latent,
    "kimi_k2": _latent,
    "glm4_moe_lite": _latent,
    "glm_moe_dsa": _glm_dsa,
    "mistral4": _latent_softmax,
    "gemma3": _gemma3,
    "phimoe": _phimoe,
    "llama4": _llama4,
    "exaone_moe": _exaone,
    "nemotron_h": _nemotron,
    "nemotron_h_super": _nemotron,
    "lfm2_moe": _lfm2,
    "granitemoehybrid": _granite_hybrid,
    "mimo_v2_flash": _mimo,
    "gemma4": _gemma4,
    "gemma4_dense": _gemma4,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "deepseek_v32": _latent,
    "deepseek_v4": _deepseek4,
    "hy_v3": _hy3,
    "afmoe": _afmoe,
    "cohere2_moe": _cohere2,
    "minimax": _minimax,
    "minimax_m3": _minimax3,
    "bailing_hybrid": _bailing3,
    "muse_glimmer": _muse,
}
"""Settings that are not copied, by family."""

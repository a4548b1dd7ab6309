"""A checkpoint with a few layers of Qwen3.6-35B-A3B at their real sizes, filled with random values.

As its NVFP4 releases: routed experts at 4 bits in blocks of 16, everything else bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.fakes.random_checkpoint import Row, nvfp4_rows, write_checkpoint
from tests.fakes.tiny_models import write_tokenizer

QWEN_CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "full_attention_interval": 4,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attn_output_gate": True,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def build_qwen(folder: Path, layers: int, seed: int = 0, **changes: Any) -> Path:
    """Write the folder, tokenizer included. changes: of QWEN_CONFIG. Returns it."""
    config = {**QWEN_CONFIG, "num_hidden_layers": layers, **changes}
    kept = ["lm_head", "*attn*", "*mlp.gate", "*shared_expert*"]
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    config["quantization_config"] = quantised | {"ignore": kept}
    write_checkpoint(folder, config, _rows(config), seed)
    write_tokenizer(folder)
    return folder


def _rows(c: Mapping[str, Any]) -> Iterator[Row]:
    hidden = c["hidden_size"]
    yield _matrix("model.embed_tokens", c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield Row(f"{base}.{norm}.weight", "BF16", (hidden,))  # 1 is added to it
        full = (layer + 1) % c["full_attention_interval"] == 0
        yield from _attention(f"{base}.self_attn", c) if full else _delta(f"{base}.linear_attn", c)
        yield from _experts(f"{base}.mlp", c)
    yield Row("model.norm.weight", "BF16", (hidden,))
    yield _matrix("lm_head", c["vocab_size"], hidden)


def _attention(base: str, c: Mapping[str, Any]) -> Iterator[Row]:
    hidden, size = c["hidden_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    yield _matrix(f"{base}.q_proj", 2 * heads * size, hidden)  # queries and their gates
    yield _matrix(f"{base}.k_proj", kv_heads * size, hidden)
    yield _matrix(f"{base}.v_proj", kv_heads * size, hidden)
    yield _matrix(f"{base}.o_proj", hidden, heads * size)
    yield Row(f"{base}.q_norm.weight", "BF16", (size,))
    yield Row(f"{base}.k_norm.weight", "BF16", (size,))


def _delta(base: str, c: Mapping[str, Any]) -> Iterator[Row]:
    hidden, heads = c["hidden_size"], c["linear_num_value_heads"]
    values = heads * c["linear_value_head_dim"]
    mixed = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + values
    yield _matrix(f"{base}.in_proj_qkv", mixed, hidden)
    yield _matrix(f"{base}.in_proj_z", values, hidden)
    yield _matrix(f"{base}.in_proj_a", heads, hidden)
    yield _matrix(f"{base}.in_proj_b", heads, hidden)
    yield Row(f"{base}.conv1d.weight", "BF16", (mixed, 1, c["linear_conv_kernel_dim"]))
    yield Row(f"{base}.A_log", "BF16", (heads,))
    yield Row(f"{base}.dt_bias", "BF16", (heads,))
    yield Row(f"{base}.norm.weight", "BF16", (c["linear_value_head_dim"],), mean=1)
    yield _matrix(f"{base}.out_proj", hidden, values)


def _experts(base: str, c: Mapping[str, Any]) -> Iterator[Row]:
    hidden, inter = c["hidden_size"], c["moe_intermediate_size"]
    yield _matrix(f"{base}.gate", c["num_experts"], hidden)
    yield _matrix(f"{base}.shared_expert_gate", 1, hidden)
    shared = c["shared_expert_intermediate_size"]
    for part in ("gate_proj", "up_proj"):
        yield _matrix(f"{base}.shared_expert.{part}", shared, hidden)
    yield _matrix(f"{base}.shared_expert.down_proj", hidden, shared)
    for expert in range(c["num_experts"]):
        for part in ("gate_proj", "up_proj"):
            yield from nvfp4_rows(f"{base}.experts.{expert}.{part}", inter, hidden)
        yield from nvfp4_rows(f"{base}.experts.{expert}.down_proj", hidden, inter)


def _matrix(name: str, rows: int, cols: int) -> Row:
    return Row(f"{name}.weight", "BF16", (rows, cols))

"""Checkpoints of released sizes as headers: every tensor in its place, no weight byte anywhere.

A shape table gives names, formats and shapes; here they become safetensors shards as a hub serves
them. Sizes follow the models' own configs; small tensors that no forecast sees are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes.hub import SparseFile
from tests.fakes.random_checkpoint import Row, nvfp4_rows, shard_header

SHARD_BYTES = 5 * 10**9

GLM_CONFIG: Mapping[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "hidden_size": 6144,
    "num_hidden_layers": 78,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 12288,
    "vocab_size": 154880,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "max_position_embeddings": 202752,
}
DEEPSEEK_CONFIG: Mapping[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "vocab_size": 129280,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "max_position_embeddings": 1048576,
}


def glm_nvfp4(config: Mapping[str, Any] = GLM_CONFIG, drafting: int = 1) -> Iterator[Row]:
    """GLM-5.2 as released in NVFP4: experts at 4 bits in blocks of 16, everything else bf16.

    config: GLM_CONFIG, perhaps with fewer layers. drafting: layers after the last one; they draft
    tokens, are fetched and never loaded.
    """
    c = config
    hidden, inter = c["hidden_size"], c["moe_intermediate_size"]
    yield Row("model.embed_tokens.weight", "BF16", (c["vocab_size"], hidden))
    for layer in range(c["num_hidden_layers"] + drafting):
        base = f"model.layers.{layer}"
        yield from _mla(base, c)
        if layer < c["first_k_dense_replace"]:
            yield from _mlp(f"{base}.mlp", hidden, c["intermediate_size"])
            continue
        yield Row(f"{base}.mlp.gate.weight", "BF16", (c["n_routed_experts"], hidden))
        yield from _mlp(f"{base}.mlp.shared_experts", hidden, inter)
        for expert in range(c["n_routed_experts"]):
            for part, rows, cols in _parts(hidden, inter, ("gate_proj", "up_proj", "down_proj")):
                yield from nvfp4_rows(f"{base}.mlp.experts.{expert}.{part}", rows, cols)
    yield Row("model.norm.weight", "BF16", (hidden,), mean=1)
    yield Row("lm_head.weight", "BF16", (c["vocab_size"], hidden))


def deepseek_fp4() -> Iterator[Row]:
    """DeepSeek-V4-Flash as released: experts at 4 bits in blocks of 32, the rest fp8 and bf16."""
    c = DEEPSEEK_CONFIG
    hidden, inter, heads = c["hidden_size"], c["moe_intermediate_size"], c["num_attention_heads"]
    yield Row("embed.weight", "BF16", (c["vocab_size"], hidden))
    for base in (*(f"layers.{n}" for n in range(c["num_hidden_layers"])), "mtp.0"):
        yield Row(f"{base}.attn.wq_a.weight", "F8_E4M3", (c["q_lora_rank"], hidden))
        yield Row(f"{base}.attn.wq_b.weight", "F8_E4M3", (heads * c["head_dim"], c["q_lora_rank"]))
        yield Row(f"{base}.attn.wkv.weight", "F8_E4M3", (c["head_dim"], hidden))
        yield Row(f"{base}.attn.wo_a.weight", "F8_E4M3", (8 * 1024, heads * c["head_dim"] // 8))
        yield Row(f"{base}.attn.wo_b.weight", "F8_E4M3", (hidden, 8 * 1024))
        yield Row(f"{base}.ffn.gate.weight", "BF16", (c["n_routed_experts"], hidden))
        for part, rows, cols in _parts(hidden, inter, ("w1", "w3", "w2")):
            yield Row(f"{base}.ffn.shared_experts.{part}.weight", "F8_E4M3", (rows, cols))
        for expert in range(c["n_routed_experts"]):
            for part, rows, cols in _parts(hidden, inter, ("w1", "w3", "w2")):
                name = f"{base}.ffn.experts.{expert}.{part}"
                yield Row(f"{name}.weight", "I8", (rows, cols // 2))
                yield Row(f"{name}.scale", "F8_E8M0", (rows, cols // 32))
    yield Row("norm.weight", "BF16", (hidden,))
    yield Row("head.weight", "BF16", (c["vocab_size"], hidden))


def checkpoint(config: Mapping[str, Any], rows: Iterator[Row]) -> dict[str, bytes | SparseFile]:
    """A repository's files: config, an index and shards of headers with nothing behind them."""
    shards: list[list[Row]] = [[]]
    filled = 0
    for row in rows:
        if filled and filled + row.bytes > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(row)
        filled += row.bytes
    files: dict[str, bytes | SparseFile] = {"config.json": json.dumps(dict(config)).encode()}
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        files[name] = _shard(shard)
        weight_map |= {row.name: name for row in shard}
    index = {"metadata": {}, "weight_map": weight_map}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    return files


def _shard(rows: list[Row]) -> SparseFile:
    head = shard_header(rows)
    return SparseFile(head, len(head) + sum(row.bytes for row in rows))


def _mla(base: str, c: Mapping[str, Any]) -> Iterator[Row]:
    hidden, heads, rope = c["hidden_size"], c["num_attention_heads"], c["qk_rope_head_dim"]
    latent, query = c["kv_lora_rank"], c["q_lora_rank"]
    nope, value = c["qk_nope_head_dim"], c["v_head_dim"]
    attention = f"{base}.self_attn"
    yield Row(f"{attention}.q_a_proj.weight", "BF16", (query, hidden))
    yield Row(f"{attention}.q_b_proj.weight", "BF16", (heads * (nope + rope), query))
    yield Row(f"{attention}.kv_a_proj_with_mqa.weight", "BF16", (latent + rope, hidden))
    yield Row(f"{attention}.kv_b_proj.weight", "BF16", (heads * (nope + value), latent))
    yield Row(f"{attention}.o_proj.weight", "BF16", (hidden, heads * value))
    index = c["index_n_heads"] * c["index_head_dim"]
    yield Row(f"{attention}.indexer.wq_b.weight", "BF16", (index, query))
    yield Row(f"{attention}.indexer.wk.weight", "BF16", (c["index_head_dim"], hidden))


def _mlp(base: str, hidden: int, inter: int) -> Iterator[Row]:
    for part, rows, cols in _parts(hidden, inter, ("gate_proj", "up_proj", "down_proj")):
        yield Row(f"{base}.{part}.weight", "BF16", (rows, cols))


def _parts(hidden: int, inter: int, names: tuple[str, str, str]) -> Iterator[tuple[str, int, int]]:
    gate, up, down = names
    yield gate, inter, hidden
    yield up, inter, hidden
    yield down, hidden, inter

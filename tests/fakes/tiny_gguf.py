"""Writes tiny models as GGUF through the reference `gguf` package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from ftengine.quant import format_named
from tests.fakes import tiny_models as tiny

_DENSE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERT = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"} | {
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}
_SCALE_FIELDS = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q5_0": (0,), "q5_1": (0, 2)}


def write_gguf(
    arch: str,
    family: str,
    path: Path,
    weights: dict[str, tiny.Floats],
    sizes: tiny.TinySizes,
    types: dict[str, str],
    pre: str,
) -> None:
    """Write key-values, tokenizer and tensors."""
    writer = gguf.GGUFWriter(path, arch)
    _write_settings(writer, family, sizes)
    write_tokenizer_fields(writer, pre)
    for name, values in gguf_weights(family, weights, sizes).items():
        _write_tensor(writer, name, values, types)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_weights(
    family: str, weights: dict[str, tiny.Floats], sizes: tiny.TinySizes
) -> dict[str, tiny.Floats]:
    """Hub names to GGUF names; experts stacked, llama q and k rows permuted."""
    out: dict[str, tiny.Floats] = {}
    stacks: dict[str, list[tiny.Floats]] = {}
    for name, values in weights.items():
        if name in _DENSE:
            out[_DENSE[name]] = values
            continue
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
        assert found
        layer, inner = found.groups()
        expert = re.fullmatch(r"\w+\.experts\.\d+\.(\w+)", inner)
        if expert:
            key = f"blk.{layer}.ffn_{_EXPERT[expert.group(1)]}_exps.weight"
            stacks.setdefault(key, []).append(values)
            continue
        if family in ("llama", "mixtral") and inner.endswith(("q_proj", "k_proj")):
            values = permute(values, sizes.heads if "q_proj" in inner else sizes.kv_heads)
        out[f"blk.{layer}.{_LAYER[inner]}.weight"] = values
    return out | {key: np.stack(values) for key, values in stacks.items()}


def permute(values: tiny.Floats, heads: int) -> tiny.Floats:
    """Half-split rope rows to interleaved ones, as llama-arch GGUF files hold them."""
    shape = values.shape
    split = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(shape)


def _write_settings(writer: gguf.GGUFWriter, family: str, sizes: tiny.TinySizes) -> None:
    writer.add_name("Tiny")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.expert_inter if family == "mixtral" else sizes.inter)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(sizes.vocab)
    if family in ("mixtral", "qwen3_moe"):
        writer.add_expert_count(sizes.num_experts)
        writer.add_expert_used_count(sizes.top_k)
    if family == "qwen3_moe":
        writer.add_expert_feed_forward_length(sizes.expert_inter)


def write_tokenizer_fields(
    writer: gguf.GGUFWriter, pre: str, more_tokens: Sequence[str] = ()
) -> None:
    """A byte-level BPE tokenizer. more_tokens: at the end, never made of text."""
    tokens, merges = tiny.tiny_vocabulary()
    tokens += more_tokens
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    control = len(tiny.SPECIALS)
    writer.add_token_types([3] * control + [1] * (len(tokens) - control))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny.CHATML)


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, values: tiny.Floats, types: dict[str, str]
) -> None:
    matrix = types.get("matrix", "f32")
    if values.ndim == 1 or "ffn_gate_inp" in name:
        matrix = "f32"
    elif "_exps" in name:
        matrix = types.get("experts", matrix)
    elif name == "token_embd.weight":
        matrix = types.get("embed", matrix)
    if matrix == "f32":
        writer.add_tensor(name, values)
        return
    if matrix == "nvfp4":
        writer.add_tensor(name, nvfp4_blocks(values), raw_dtype=gguf.GGMLQuantizationType.NVFP4)
        if types.get("factors"):
            factors = np.linspace(0.5, 1.7, len(values) if values.ndim > 2 else 1)
            writer.add_tensor(name.replace(".weight", ".scale"), factors.astype(np.float32))
            writer.add_tensor(name.replace(".weight", ".input_scale"), np.ones(1, np.float32))
        return
    raw = encode(matrix, values)
    kind = gguf.GGMLQuantizationType(format_named(matrix).gguf_type)
    writer.add_tensor(name, raw, raw_dtype=kind)


def nvfp4_blocks(values: tiny.Floats) -> npt.NDArray[np.uint8]:
    """Random blocks of GGML type 40: four scales, then the codes of 64 elements."""
    rng = np.random.default_rng(values.size)
    blocks = rng.integers(0, 256, (values.size // 64, 36), dtype=np.uint8)
    blocks[:, :4] = rng.integers(1, 24, (len(blocks), 4))
    blocks[0, :4] = (0, 0x7F, 1, 0x88)  # zero in two ways, the least one, and one with a sign
    return blocks.reshape(*values.shape[:-1], -1)


def encode(name: str, values: tiny.Floats) -> npt.NDArray[np.uint8]:
    """Rows in a weight format; random blocks with small scales where we cannot encode."""
    fmt = format_named(name)
    if fmt.encode_blocks is not None:
        return fmt.quantize(values)
    rng = np.random.default_rng(values.size)
    shape = (*values.shape[:-1], fmt.row_bytes(values.shape[-1]))
    raw = rng.integers(0, 256, shape, dtype=np.uint8)
    blocks = raw.reshape(-1, fmt.block_bytes)
    if name == "mxfp4_gguf":
        blocks[:, 0] = rng.integers(118, 124, len(blocks))
        return raw
    for offset in _SCALE_FIELDS[name]:
        scales = rng.uniform(1e-4, 1e-3, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return raw

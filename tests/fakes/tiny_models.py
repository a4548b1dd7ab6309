"""Tiny random models in the file formats people really have; milliseconds to build.

The weights are random but sensibly scaled, so logits differ from token to token. `build_tiny`
writes a Hugging Face folder, `build_tiny_gguf` the same model as one GGUF file.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ftengine.quant import format_named

Floats = npt.NDArray[np.float32]
FAMILIES = ("llama", "qwen3", "mixtral", "qwen3_moe")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_DTYPES = {"float32": ("F32", "f32"), "bfloat16": ("BF16", "bf16"), "float16": ("F16", "f16")}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
_MERGES = (
    "Ġ t|h e|i n|r e|a n|Ġ a|Ġt he|o n|e r|Ġ s|Ġ w|o u|Ġ c|Ġ b|i s|e n|Ġ f|o r|e s|i t|"
    "Ġ p|in g|Ġ o|Ġ m|e d|a l|Ġ in|an d|l l|Ġ h|u s|a s|Ġ is|s t|Ġ and|l e|i c|k y|b l|u e|"
    "y ou|w h|Ċ Ċ|Ġ Ġ|1 2|Ġs ky|bl ue|Ġ bl"
)


@dataclass(frozen=True)
class TinySizes:
    """Sizes of a tiny model. num_experts and expert_inter matter to MoE families only."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    inter: int = 96
    num_experts: int = 4
    top_k: int = 2
    expert_inter: int = 32
    vocab: int = 320
    context: int = 512
    tied: bool = False


def build_tiny(
    family: str,
    folder: Path,
    seed: int = 0,
    dtype: str = "float32",
    *,
    sizes: TinySizes | None = None,
    fused: bool = False,
    num_shards: int = 1,
    config_changes: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint folder (config, safetensors, tokenizer, template); returns `folder`.

    fused writes experts as transformers 5 keeps them: gate_up_proj [E, 2I, D] without ".weight".
    """
    sizes = sizes or sizes_of(family)
    folder.mkdir(parents=True, exist_ok=True)
    config = {**tiny_config(family, sizes, dtype), **(config_changes or {})}
    weights = hub_weights(family, sizes, seed)
    if fused:
        weights = _fuse_experts(family, weights, sizes)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 0]})
    _write_shards(folder, weights, dtype, num_shards)
    write_tokenizer(folder)
    return folder


def sizes_of(family: str, **changes: Any) -> TinySizes:
    """Default sizes of a family; qwen3 has a head_dim that is not hidden / heads and ties."""
    base = TinySizes()
    if family in ("qwen3", "qwen3_moe"):
        base = replace(base, head_dim=32, tied=family == "qwen3")
    if family == "mixtral":
        base = replace(base, expert_inter=96)
    return replace(base, **changes)


def tiny_config(family: str, sizes: TinySizes, dtype: str = "float32") -> dict[str, Any]:
    """config.json in the dialect released files mostly carry."""
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.expert_inter if family == "mixtral" else sizes.inter,
        "hidden_act": "silu",
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": sizes.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": dtype,
    }
    if family == "mixtral":
        config |= {
            "num_local_experts": sizes.num_experts,
            "num_experts_per_tok": sizes.top_k,
            "sliding_window": None,
        }
    if family == "qwen3_moe":
        config |= {
            "num_experts": sizes.num_experts,
            "num_experts_per_tok": sizes.top_k,
            "moe_intermediate_size": sizes.expert_inter,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def hub_weights(family: str, sizes: TinySizes, seed: int = 0) -> dict[str, Floats]:
    """Random weights under the names of released checkpoints."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, cols: int, gain: float = 1.0) -> Floats:
        values = rng.standard_normal((rows, cols), dtype=np.float32)
        return values * np.float32(gain / np.sqrt(cols))

    def norm(size: int) -> Floats:
        return 1 + np.float32(0.1) * rng.standard_normal(size, dtype=np.float32)

    out = {"model.embed_tokens.weight": matrix(sizes.vocab, sizes.hidden, 4.0)}
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}."
        out[prefix + "input_layernorm.weight"] = norm(sizes.hidden)
        out[prefix + "post_attention_layernorm.weight"] = norm(sizes.hidden)
        attention = prefix + "self_attn."
        out[attention + "q_proj.weight"] = matrix(sizes.heads * sizes.head_dim, sizes.hidden)
        out[attention + "k_proj.weight"] = matrix(sizes.kv_heads * sizes.head_dim, sizes.hidden)
        out[attention + "v_proj.weight"] = matrix(sizes.kv_heads * sizes.head_dim, sizes.hidden)
        out[attention + "o_proj.weight"] = matrix(sizes.hidden, sizes.heads * sizes.head_dim)
        if family in ("qwen3", "qwen3_moe"):
            out[attention + "q_norm.weight"] = norm(sizes.head_dim)
            out[attention + "k_norm.weight"] = norm(sizes.head_dim)
        if family in ("llama", "qwen3"):
            out[prefix + "mlp.gate_proj.weight"] = matrix(sizes.inter, sizes.hidden)
            out[prefix + "mlp.up_proj.weight"] = matrix(sizes.inter, sizes.hidden)
            out[prefix + "mlp.down_proj.weight"] = matrix(sizes.hidden, sizes.inter)
            continue
        block, names = _expert_names(family)
        out[prefix + block + ".gate.weight"] = matrix(sizes.num_experts, sizes.hidden, 2.0)
        for expert in range(sizes.num_experts):
            stem = f"{prefix}{block}.experts.{expert}."
            out[f"{stem}{names[0]}.weight"] = matrix(sizes.expert_inter, sizes.hidden)
            out[f"{stem}{names[1]}.weight"] = matrix(sizes.expert_inter, sizes.hidden)
            out[f"{stem}{names[2]}.weight"] = matrix(sizes.hidden, sizes.expert_inter)
    out["model.norm.weight"] = norm(sizes.hidden)
    if not sizes.tied:
        out["lm_head.weight"] = matrix(sizes.vocab, sizes.hidden, 2.0)
    return out


def byte_alphabet() -> list[str]:
    """The printable stand-ins for the 256 bytes, in byte order."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shown = {byte: chr(byte) for byte in kept}
    for number, byte in enumerate(byte for byte in range(256) if byte not in shown):
        shown[byte] = chr(256 + number)
    return [shown[byte] for byte in range(256)]


def tiny_vocabulary() -> tuple[list[str], list[str]]:
    """(tokens by id, merges as "left right"): specials first, as SmolLM2 has them."""
    merges = _MERGES.split("|")
    tokens = [*SPECIALS, *byte_alphabet()]
    tokens += [merge.replace(" ", "") for merge in merges]
    return tokens, merges


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer.json with ChatML specials, its config and the template."""
    tokens, merges = tiny_vocabulary()
    added = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, text in enumerate(SPECIALS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
    _write_json(folder / "tokenizer.json", value)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "pad_token": SPECIALS[2],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(CHATML, "utf-8")


def write_safetensors(path: Path, tensors: dict[str, Floats], dtype: str = "float32") -> None:
    """Write one safetensors file by hand."""
    stored, name = _DTYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, offset = [], 0
    for key, values in tensors.items():
        raw = format_named(name).quantize(values.reshape(1, -1)).tobytes()
        header[key] = {
            "dtype": stored,
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        blobs.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def build_tiny_gguf(
    arch: str,
    path: Path,
    *,
    types: dict[str, str] | None = None,
    seed: int = 0,
    sizes: TinySizes | None = None,
    pre: str = "smollm",
    family: str = "",
) -> Path:
    """Write the same model as `build_tiny` as GGUF; q and k of the llama arch are permuted.

    types: our format names by role: "matrix" (default f32), "experts" and "embed" (default matrix).
    family: "mixtral" for llama with experts. Formats that cannot be encoded get random blocks.
    """
    from tests.fakes.tiny_gguf import write_gguf

    family = family or {"llama": "llama", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}[arch]
    sizes = sizes or sizes_of(family)
    weights = hub_weights(family, sizes, seed)
    write_gguf(arch, family, path, weights, sizes, types or {}, pre)
    return path


def _expert_names(family: str) -> tuple[str, tuple[str, str, str]]:
    if family == "mixtral":
        return "block_sparse_moe", ("w1", "w3", "w2")
    return "mlp", ("gate_proj", "up_proj", "down_proj")


def _fuse_experts(family: str, weights: dict[str, Floats], sizes: TinySizes) -> dict[str, Floats]:
    block, names = _expert_names(family)
    out = {name: values for name, values in weights.items() if ".experts." not in name}
    for layer in range(sizes.layers):
        stem = f"model.layers.{layer}.{block}.experts."

        def part(name: str, expert: int, stem: str = stem) -> Floats:
            return weights[f"{stem}{expert}.{name}.weight"]

        experts = range(sizes.num_experts)
        gate_up = [np.concatenate([part(names[0], e), part(names[1], e)]) for e in experts]
        fused = f"model.layers.{layer}.mlp.experts."
        out[fused + "gate_up_proj"] = np.stack(gate_up)
        out[fused + "down_proj"] = np.stack([part(names[2], e) for e in experts])
        if block != "mlp":
            router = out.pop(f"model.layers.{layer}.{block}.gate.weight")
            out[f"model.layers.{layer}.mlp.gate.weight"] = router
    return out


def _write_shards(folder: Path, weights: dict[str, Floats], dtype: str, num_shards: int) -> None:
    if num_shards == 1:
        write_safetensors(folder / "model.safetensors", weights, dtype)
        return
    names = list(weights)
    where: dict[str, str] = {}
    for number in range(num_shards):
        file = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        chosen = names[number::num_shards]
        write_safetensors(folder / file, {name: weights[name] for name in chosen}, dtype)
        where |= dict.fromkeys(chosen, file)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), "utf-8")

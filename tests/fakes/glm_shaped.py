"""A checkpoint with a few layers of GLM-5.2 at their real sizes, filled with random values.

Names, formats and shapes of the large tensors are big_models.py's; here are the small ones and what
all of them hold. Nothing but a piece of one tensor is in memory at a time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tests.fakes.big_models import GLM_CONFIG, Row, glm_nvfp4
from tests.fakes.tiny_models import write_tokenizer

_PIECE = 1 << 24
_FP4_DEVIATION = 2.9
"""Of the sixteen values that four bits stand for, drawn alike."""
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nCall a tool: <tool_call>NAME\n<arg_key>KEY</arg_key>\n"
    "<arg_value>VALUE</arg_value>\n</tool_call>\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %}\n<arg_key>{{ key }}</arg_key>\n"
    "<arg_value>{{ value }}</arg_value>{% endfor %}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shaped_config(moe_layers: int, vocab_size: int) -> dict[str, Any]:
    """config.json: one dense layer, then so many with experts, everything else as released."""
    kept = ["lm_head", "*self_attn*", "*mlp.gate", "*shared_experts*", "model.layers.0.*"]
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    return {
        **GLM_CONFIG,
        "num_hidden_layers": 1 + moe_layers,
        "first_k_dense_replace": 1,
        "vocab_size": vocab_size,
        "index_topk": 2048,
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "eos_token_id": 2,
        "bos_token_id": 1,
        "torch_dtype": "bfloat16",
        "quantization_config": quantised | {"ignore": kept},
    }


def build_shaped(folder: Path, moe_layers: int = 1, vocab_size: int = 16384, seed: int = 0) -> Path:
    """Write the folder, tokenizer and template included: a shard for each layer. Returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = shaped_config(moe_layers, vocab_size)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    shards: dict[str, list[Row]] = {}
    for row in (*glm_nvfp4(config, drafting=0), *_small_rows(config)):
        part = row.name.split(".")[2] if ".layers." in row.name else "outside"
        shards.setdefault(part, []).append(row)
    rng = np.random.default_rng(seed)
    where = {}
    for number, rows in enumerate(shards.values(), 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with (folder / name).open("wb") as file:
            _write_shard(file, rows, rng)
        where |= {row.name: name for row in rows}
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    return folder


def _small_rows(config: Mapping[str, Any]) -> Iterator[Row]:
    """What the shape table leaves out. The final norm is in it."""
    hidden = config["hidden_size"]
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield Row(f"{base}.{name}.weight", "BF16", (hidden,))
        attention = f"{base}.self_attn"
        yield Row(f"{attention}.q_a_layernorm.weight", "BF16", (config["q_lora_rank"],))
        yield Row(f"{attention}.kv_a_layernorm.weight", "BF16", (config["kv_lora_rank"],))
        for ending in ("weight", "bias"):
            size = config["index_head_dim"]
            yield Row(f"{attention}.indexer.k_norm.{ending}", "BF16", (size,))
        heads = config["index_n_heads"]
        yield Row(f"{attention}.indexer.weights_proj.weight", "BF16", (heads, hidden))
        if layer >= config["first_k_dense_replace"]:
            size = config["n_routed_experts"]
            yield Row(f"{base}.mlp.gate.e_score_correction_bias", "F32", (size,))


def _write_shard(file: BinaryIO, rows: list[Row], rng: np.random.Generator) -> None:
    header, at = {}, 0
    for row in rows:
        ends = [at, at + row.bytes]
        header[row.name] = {"dtype": row.dtype, "shape": row.shape, "data_offsets": ends}
        at += row.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    file.write(struct.pack("<Q", len(text)) + text)
    for row in rows:
        for piece in _values(row, rng):
            file.write(piece.tobytes())


def _values(row: Row, rng: np.random.Generator) -> Iterator[npt.NDArray[Any]]:
    """Bytes of a tensor, a piece at a time; scaled so that products keep their size."""
    count = math.prod(row.shape)
    if row.dtype == "F32":
        yield _floats(row, rng.standard_normal(count, np.float32))
        return
    for start in range(0, count, _PIECE):
        size = min(_PIECE, count - start)
        if row.dtype == "BF16":
            made = _floats(row, rng.standard_normal(size, np.float32))
            yield (made.view(np.uint32) >> 16).astype(np.uint16)
        elif row.dtype == "F8_E4M3":  # 0.5 to 0.9375
            yield rng.integers(0x30, 0x38, size, np.uint8)
        else:
            yield rng.integers(0, 256, size, np.uint8)


def _floats(row: Row, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if row.name.endswith("weight_scale_2"):
        cols = GLM_CONFIG["moe_intermediate_size" if "down_proj" in row.name else "hidden_size"]
        return np.full(1, 1 / (0.7 * _FP4_DEVIATION * math.sqrt(cols)), np.float32)
    if row.name.endswith("input_scale"):
        return np.ones(1, np.float32)
    if len(row.shape) == 1:
        return np.float32(1.0 if "norm.weight" in row.name else 0.0) + np.float32(0.05) * noise
    return noise * np.float32(1.0 if "embed" in row.name else row.shape[-1] ** -0.5)

"""A GGUF with the layers of Qwen3-30B-A3B and random weights: what comparisons of speed need.

`python -m benchmarks.random_moe q4_k OUT.gguf --layers 4`. Sizes, formats and routing are those of
the real model, the vocabulary is cut down; what it says means nothing. All layers hold the same
bytes but for their routers, so that the file is soon made; on disk and in memory each is there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from ftengine.quant import format_named
from tests.fakes.tiny_gguf import encode, nvfp4_blocks, write_tokenizer_fields
from tests.fakes.tiny_models import tiny_vocabulary

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 2048, 32, 4, 128
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_SIZE = 128, 8, 768
VOCABULARY, CONTEXT = 8192, 40960
SCALE = 0.02
DENSE_FORMATS = {"bf16": "bf16", "q4_k": "q4_k", "q5_k": "q5_k", "q6_k": "q6_k"}
"""Of attention, by the format of the experts: else q8_0, as published files have it."""
GGUF_NAMES = {"mxfp4": "mxfp4_gguf"}

Bytes = npt.NDArray[np.uint8]


def random_rows(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """Rows of a weight format, whose blocks are drawn from some thousand different ones."""
    few = (rng.standard_normal((64, HIDDEN)) * SCALE).astype(np.float32)
    rows = nvfp4_blocks(few) if name == "nvfp4" else encode(GGUF_NAMES.get(name, name), few)
    size = 36 if name == "nvfp4" else format_named(GGUF_NAMES.get(name, name)).block_bytes
    blocks = rows.view(np.uint8).reshape(-1, size)
    per_row = len(blocks) // len(few) * shape[-1] // HIDDEN
    drawn = rng.integers(0, len(blocks), (*shape[:-1], per_row), dtype=np.int32)
    return blocks[drawn].reshape(*shape[:-1], per_row * size)


def add_random(
    writer: gguf.GGUFWriter, tensors: dict[str, tuple[str, Bytes]], prefix: str = ""
) -> None:
    """Add tensors, each (format, rows), to a file."""
    for name, (kind, rows) in tensors.items():
        type_id = format_named(GGUF_NAMES.get(kind, kind)).gguf_type if kind != "nvfp4" else 40
        writer.add_tensor(prefix + name, rows, raw_dtype=gguf.GGMLQuantizationType(type_id))


def layer_tensors(name: str, rng: np.random.Generator) -> dict[str, tuple[str, Bytes]]:
    """What all layers share: attention and experts."""
    dense = DENSE_FORMATS.get(name, "q8_0")
    width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    matrices = {
        "attn_q": (dense, (width, HIDDEN)),
        "attn_k": (dense, (kv_width, HIDDEN)),
        "attn_v": (dense, (kv_width, HIDDEN)),
        "attn_output": (dense, (HIDDEN, width)),
        "ffn_gate_exps": (name, (EXPERTS, EXPERT_SIZE, HIDDEN)),
        "ffn_up_exps": (name, (EXPERTS, EXPERT_SIZE, HIDDEN)),
        "ffn_down_exps": (name, (EXPERTS, HIDDEN, EXPERT_SIZE)),
    }
    return {
        f"{part}.weight": (kind, random_rows(kind, shape, rng))
        for part, (kind, shape) in matrices.items()
    }


def write_settings(writer: gguf.GGUFWriter, layers: int) -> None:
    """The key-values of the architecture and a tokenizer of byte pairs."""
    writer.add_name("Random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(EXPERT_SIZE)
    writer.add_expert_feed_forward_length(EXPERT_SIZE)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_PER_TOKEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCABULARY)
    more = VOCABULARY - len(tiny_vocabulary()[0])
    write_tokenizer_fields(writer, "qwen2", [f"<more {number}>" for number in range(more)])


def write(name: str, path: Path, layers: int, seed: int = 1) -> None:
    """Write the file; an existing one is replaced."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    write_settings(writer, layers)
    ends = {
        f"{part}.weight": ("q8_0", random_rows("q8_0", (VOCABULARY, HIDDEN), rng))
        for part in ("token_embd", "output")
    }
    add_random(writer, ends)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    shared = layer_tensors(name, rng)
    norms = {
        "attn_norm": HIDDEN,
        "ffn_norm": HIDDEN,
        "attn_q_norm": HEAD_DIM,
        "attn_k_norm": HEAD_DIM,
    }
    for layer in range(layers):
        add_random(writer, shared, f"blk.{layer}.")
        for part, width in norms.items():
            writer.add_tensor(f"blk.{layer}.{part}.weight", np.ones(width, np.float32))
        router = (rng.standard_normal((EXPERTS, HIDDEN)) * SCALE).astype(np.float32)
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=("mxfp4", "nvfp4", "q8_0", "bf16", *DENSE_FORMATS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    given = parser.parse_args()
    write(given.format, given.out, given.layers)


if __name__ == "__main__":
    main()

"""Tiny LoRA adapters in the two forms people have, and what merging one must give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.fakes.tiny_gguf import permute
from tests.fakes.tiny_models import Floats, write_safetensors

RANK, ALPHA = 4, 8.0
Pairs = dict[str, tuple[Floats, Floats]]


def random_pairs(shapes: Mapping[str, tuple[int, int]], seed: int = 7) -> Pairs:
    """A and B for each matrix, by its name."""
    rng = np.random.default_rng(seed)
    made: Pairs = {}
    for name, (rows, cols) in shapes.items():
        down = rng.standard_normal((RANK, cols)).astype(np.float32) * np.float32(0.1)
        up = rng.standard_normal((rows, RANK)).astype(np.float32) * np.float32(0.1)
        made[name] = (down, up)
    return made


def merged(weights: dict[str, Floats], pairs: Pairs, scale: float) -> dict[str, Floats]:
    """The weights with the adapter in them, by plain matrix products in float64."""
    found = dict(weights)
    for name, (down, up) in pairs.items():
        change = scale * (up.astype(np.float64) @ down.astype(np.float64))
        found[name] = (weights[name].astype(np.float64) + change).astype(np.float32)
    return found


def write_peft(folder: Path, pairs: Pairs, **settings: Any) -> dict[str, Path]:
    """A PEFT folder; returns its files by name. Names: HF weights, as model.layers.0...weight."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors: dict[str, Floats] = {}
    for name, (down, up) in pairs.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"] = down
        tensors[f"{module}.lora_B.weight"] = up
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return {path.name: path for path in sorted(folder.iterdir())}


def write_gguf_lora(path: Path, pairs: Pairs, names: Mapping[str, str], heads: int = 0) -> Path:
    """A GGUF adapter. names: HF weight -> GGUF weight; heads: B's rows are permuted by them."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for name, (down, up) in pairs.items():
        writer.add_tensor(f"{names[name]}.lora_a", down)
        writer.add_tensor(f"{names[name]}.lora_b", permute(up, heads) if heads else up)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

"""Models for the real engine and the real converter, small and without an end of their own."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.tiny_models import (
    TinySizes,
    build_tiny,
    build_tiny_gguf,
    hub_weights,
    write_safetensors,
)

ENDLESS = TinySizes(hidden=64, layers=4, context=4096)
_END_IDS = (0, 2)


def endless_model(folder: Path) -> Path:
    """A checkpoint named `tiny` whose greedy answers go on until the context is full."""
    path = build_tiny("llama", folder / "tiny", sizes=ENDLESS)
    weights = hub_weights("llama", ENDLESS)
    # A logit of 0 is never the largest of 320 random ones.
    weights["lm_head.weight"][list(_END_IDS)] = 0
    write_safetensors(path / "model.safetensors", weights)
    return path


def wide_gguf(path: Path) -> bytes:
    """A GGUF of some megabytes, most of it one matrix after another."""
    sizes = TinySizes(hidden=256, layers=3, inter=768, head_dim=64)
    return build_tiny_gguf("llama", path, sizes=sizes).read_bytes()

"""Weight formats of checkpoints, numpy only. Read base.py first; panel32.py: the kernel layout."""

from __future__ import annotations

from ftengine.quant import (
    bf16,
    f16,
    f32,
    fp8,
    integers,
    mxfp4,
    nvfp4,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
)
from ftengine.quant.base import QuantFormat

FORMATS: tuple[QuantFormat, ...] = (
    f32.FORMAT,
    f16.FORMAT,
    bf16.FORMAT,
    q8_0.FORMAT,
    q4_0.FORMAT,
    q4_1.FORMAT,
    q5_0.FORMAT,
    q5_1.FORMAT,
    q4_k.FORMAT,
    q5_k.FORMAT,
    q6_k.FORMAT,
    mxfp4.GGUF_FORMAT,
    mxfp4.FORMAT,
    nvfp4.FORMAT,
    nvfp4.DIVIDED_FORMAT,
    fp8.TENSOR_FORMAT,
    fp8.BLOCK_FORMAT,
    fp8.BLOCK_E8M0_FORMAT,
    integers.I32_FORMAT,
    integers.I64_FORMAT,
)


def format_named(name: str) -> QuantFormat:
    """The format called `name`. Raises: ValueError naming the known ones."""
    for candidate in FORMATS:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in FORMATS)
    raise ValueError(f"unknown weight format {name!r}; known are {known}")


def format_of_gguf(type_id: int) -> QuantFormat:
    """The format with GGML type id `type_id`. Raises: ValueError naming the id."""
    known_types = [item for item in FORMATS if item.gguf_type is not None]
    for candidate in known_types:
        if candidate.gguf_type == type_id:
            return candidate
    known = ", ".join(f"{item.gguf_type}={item.name}" for item in known_types)
    raise ValueError(f"GGML type {type_id} is not supported; known are {known}")

"""What the native kernels ask of tensors before their addresses are passed on."""

from __future__ import annotations

import torch

from ftengine.errors import EngineError
from ftengine.kernels.operands import KV_GROUP, PAGE_TOKENS, HeadLayout, KvScales

POOL_FORMATS = {torch.float32: 0, torch.bfloat16: 30, torch.int8: 8}
"""Native ids of what a KV pool keeps."""


def bad_shape(call: str, what: str) -> EngineError:
    """The error for operands of shapes that do not fit."""
    return EngineError(f"{call}: shapes do not fit: {what}", code="bad_operand")


def check_rows(call: str, x: torch.Tensor, out: torch.Tensor) -> None:
    """Raises: EngineError("bad_operand") unless these are float32 rows without gaps inside."""
    good = x.dtype == torch.float32 and out.dtype == torch.float32
    if not good or x.stride(-1) != 1 or out.stride(-1) != 1:
        raise EngineError(
            f"{call}: need float32 rows with a contiguous last dimension, got {x.dtype} "
            f"{x.stride()} and {out.dtype} {out.stride()}",
            code="bad_operand",
        )


def check_index(what: str, ids: torch.Tensor, dtype: torch.dtype, count: int) -> None:
    """Raises: EngineError("bad_operand") unless these are `count` contiguous indices."""
    if ids.dtype != dtype or ids.shape != (count,) or not ids.is_contiguous():
        raise EngineError(
            f"{what}: need {count} contiguous {dtype}, got {ids.dtype} {tuple(ids.shape)}",
            code="bad_operand",
        )


def check_routing(call: str, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """Raises: EngineError("bad_operand") unless each id has a weight."""
    if (
        ids.dtype != torch.int32
        or weights.dtype != torch.float32
        or weights.shape != ids.shape
        or not (ids.is_contiguous() and weights.is_contiguous())
    ):
        raise EngineError(
            f"{call}: need contiguous int32 ids and float32 weights of one shape, got "
            f"{ids.dtype} {tuple(ids.shape)} and {weights.dtype} {tuple(weights.shape)}",
            code="bad_operand",
        )


def check_qkv(call: str, qkv: torch.Tensor, heads: HeadLayout) -> None:
    """Raises: EngineError("bad_operand") unless these are rows of the layout."""
    if qkv.dtype != torch.float32 or qkv.stride(1) != 1 or qkv.shape[1] != heads.qkv_cols:
        raise bad_shape(call, f"qkv {qkv.dtype} {tuple(qkv.shape)}, {heads}")


def check_pools(
    call: str,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: KvScales | None,
    heads: HeadLayout,
) -> None:
    """Raises: EngineError("bad_operand") unless these are pools of such heads and their scales."""
    shape = (keys.shape[0], heads.kv_heads, PAGE_TOKENS, heads.head_dim)
    good = keys.shape == shape and values.shape == shape and keys.dtype == values.dtype
    if not good or keys.dtype not in POOL_FORMATS:
        raise bad_shape(call, f"keys {keys.dtype} {tuple(keys.shape)}, {heads}")
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise bad_shape(call, "the KV pools must be contiguous")
    if (scales is None) == (keys.dtype == torch.int8):
        raise bad_shape(call, f"{keys.dtype} KV pools and scales {scales is not None}")
    if scales is not None:
        _check_scales(call, scales, shape)


def _check_scales(call: str, scales: KvScales, shape: tuple[int, ...]) -> None:
    """Shape: of the pools the scales belong to."""
    wanted = (*shape[:3], shape[3] // KV_GROUP)
    for part in (scales.keys, scales.values):
        good = part.dtype == torch.float16 and part.is_contiguous() and part.shape == wanted
        if not good or shape[3] % KV_GROUP:
            raise bad_shape(call, f"scales {part.dtype} {tuple(part.shape)}, KV pools {shape}")


def vector_address(what: str, x: torch.Tensor, size: int) -> int:
    """Where it lies. Raises: EngineError("bad_operand") for another size."""
    if x.dtype != torch.float32 or x.shape != (size,) or not x.is_contiguous():
        raise EngineError(
            f"{what}: need {size} contiguous float32, got {x.dtype} {tuple(x.shape)}",
            code="bad_operand",
        )
    return x.data_ptr()

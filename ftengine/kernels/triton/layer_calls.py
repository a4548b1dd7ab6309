"""Launches of everything but routed experts, with the arguments of kernels/reference/.

All activations are float32; pools of keys and values are float32, bfloat16, or int8 with scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.operands import PAGE_TOKENS, HeadLayout, PackedWeight, RouteSpec
from ftengine.kernels.triton import builds
from ftengine.kernels.triton.calls import KernelCall, Value
from ftengine.kernels.triton.expert_calls import Grouping

SPLIT_TOKENS = 256
"""Keys of a cut; as in attention.py."""
_ITEMS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "q8_0"}


@dataclass(frozen=True)
class KvPages:
    """One layer's pools and the pages of a step.

    Shape: keys, values [pages, kv_heads, 16, head_dim]; scales float16 [pages, kv_heads, 16,
    head_dim / 32] of int8 pools; context_len int32 [sequences]; page_table int32 [sequences, n].
    """

    keys: torch.Tensor
    values: torch.Tensor
    context_len: torch.Tensor
    page_table: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def item(self) -> str:
        """The pools' item in names of kernels."""
        return _ITEMS[self.keys.dtype]

    @property
    def num_splits(self) -> int:
        """Cuts that the page table has room for."""
        return -(-self.page_table.shape[1] * PAGE_TOKENS // SPLIT_TOKENS)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
    add_one: bool = False,
    groups: int = 1,
) -> KernelCall:
    """Shape: x, out [rows, width], rows apart as their strides say; residual the same, contiguous;
    weight [width], which has `groups` parts.
    """
    size = x.shape[1] // groups
    return KernelCall(
        builds.rms_norm(size, residual is not None, add_one),
        {
            "x": x,
            "weight": weight,
            "residual": residual,
            "out": out,
            "x_stride": x.stride(0),
            "out_stride": out.stride(0),
            "size": size,
            "groups": groups,
            "eps": eps,
            "num_rows": x.shape[0],
        },
    )


def centre_rows(x: torch.Tensor, out: torch.Tensor) -> KernelCall:
    """Shape: x, out [rows, size], rows apart as their strides say."""
    return KernelCall(
        builds.centre_rows(x.shape[1]),
        {
            "x": x,
            "out": out,
            "x_stride": x.stride(0),
            "out_stride": out.stride(0),
            "size": x.shape[1],
            "num_rows": x.shape[0],
        },
    )


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    accumulate: bool = False,
) -> KernelCall:
    """A few tokens. Shape: x [tokens, cols]; out [tokens, rows]; rows apart as strides say."""
    return KernelCall(
        builds.linear(weight.fmt, bias is not None, accumulate),
        {
            "x": x,
            "matrix": weight.data,
            "bias": bias,
            "out": out,
            "x_stride": x.stride(0),
            "out_stride": out.stride(0),
            "rows": weight.rows,
            "cols": weight.cols,
            "num_tokens": x.shape[0],
        },
    )


def linear_gemm(
    x: torch.Tensor, weight: PackedWeight, grouping: Grouping, out: torch.Tensor, dot: str
) -> KernelCall:
    """Many tokens. Shape: x [tokens, cols], arranged for weight.fmt; grouping: one_group."""
    item = "bf16" if x.dtype == torch.bfloat16 else "f32"
    return KernelCall(
        builds.down_gemm(weight.fmt, dot, item=item),
        {
            "x": x,
            "tiles": grouping.tiles,
            "pairs": grouping.pairs,
            "bank": weight.data,
            "out": out,
            "rows": weight.rows,
            "cols": weight.cols,
            "row_bytes": 0,
            "offset": 0,
            "bias_offset": 0,
            "num_tiles": grouping.tiles.shape[0],
        },
    )


@dataclass(frozen=True)
class Rotation:
    """Shape: cos, sin float32 [positions, half]; q_norm, k_norm [head_dim] or None."""

    cos: torch.Tensor
    sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6
    interleaved: bool = False


def rope_store(
    qkv: torch.Tensor,
    heads: HeadLayout,
    rotation: Rotation,
    positions: torch.Tensor,
    slots: torch.Tensor,
    pages: KvPages,
) -> KernelCall:
    """Shape: qkv [tokens, heads.qkv_cols or more]; positions int32, slots int64 [tokens]."""
    q_norm, k_norm = rotation.q_norm is not None, rotation.k_norm is not None
    return KernelCall(
        builds.rope_store(pages.item, heads.head_dim, q_norm, k_norm, rotation.interleaved),
        {
            "qkv": qkv,
            "cos": rotation.cos,
            "sin": rotation.sin,
            "positions": positions,
            "slots": slots,
            "keys": pages.keys,
            "values": pages.values,
            "key_scales": pages.key_scales,
            "value_scales": pages.value_scales,
            "q_norm": rotation.q_norm,
            "k_norm": rotation.k_norm,
            "qkv_stride": qkv.stride(0),
            "heads": heads.heads,
            "kv_heads": heads.kv_heads,
            "head_dim": heads.head_dim,
            "half": rotation.cos.shape[1],
            "eps": rotation.eps,
            "num_tokens": qkv.shape[0],
        },
    )


@dataclass(frozen=True)
class Attended:
    """What attention is asked for. dot: product.py's names."""

    heads: HeadLayout
    scale: float
    window: int = 0
    sinks: torch.Tensor | None = None
    dot: str = "bf16"

    @property
    def per_key(self) -> int:
        """Query heads of a key head."""
        return self.heads.heads // self.heads.kv_heads


def _common(qkv: torch.Tensor, spec: Attended, pages: KvPages) -> dict[str, Value]:
    return {
        "qkv": qkv,
        "keys": pages.keys,
        "values": pages.values,
        "key_scales": pages.key_scales,
        "value_scales": pages.value_scales,
        "context_len": pages.context_len,
        "page_table": pages.page_table,
        "qkv_stride": qkv.stride(0),
        "table_stride": pages.page_table.stride(0),
        "heads": spec.heads.heads,
        "kv_heads": spec.heads.kv_heads,
        "head_dim": spec.heads.head_dim,
        "scale": spec.scale,
        "window": spec.window,
        "num_sequences": pages.context_len.numel(),
    }


def attention_split(
    qkv: torch.Tensor, spec: Attended, pages: KvPages, sums: torch.Tensor, parts: torch.Tensor
) -> KernelCall:
    """Decoding, one token per sequence; attention_merge follows.

    Shape: qkv [sequences, n]; sums [sequences, heads, splits, 2]; parts [..., splits, head_dim].
    """
    return KernelCall(
        builds.attention_split(pages.item, spec.heads.head_dim, spec.per_key, spec.dot),
        {
            **_common(qkv, spec, pages),
            "part_sums": sums,
            "parts": parts,
            "num_splits": sums.shape[2],
        },
    )


def attention_merge(
    spec: Attended, pages: KvPages, sums: torch.Tensor, parts: torch.Tensor, out: torch.Tensor
) -> KernelCall:
    """Shape: out [sequences, heads * head_dim]; the others as in attention_split."""
    return KernelCall(
        builds.attention_merge(spec.heads.head_dim, spec.sinks is not None),
        {
            "part_sums": sums,
            "parts": parts,
            "context_len": pages.context_len,
            "sinks": spec.sinks,
            "out": out,
            "num_splits": sums.shape[2],
            "heads": spec.heads.heads,
            "head_dim": spec.heads.head_dim,
            "window": spec.window,
            "num_sequences": pages.context_len.numel(),
        },
    )


def attention_chunk(
    qkv: torch.Tensor,
    spec: Attended,
    pages: KvPages,
    query_start: torch.Tensor,
    most_queries: int,
    out: torch.Tensor,
) -> KernelCall:
    """Chunks of prompts. most_queries: the longest chunk. Shape: query_start int32 [sequences + 1];
    out [tokens, heads * head_dim].
    """
    build = builds.attention_chunk(
        pages.item, spec.heads.head_dim, spec.per_key, spec.dot, spec.sinks is not None
    )
    values = build.values
    each = int(values["ROWS"]) // int(values["HEADS"])
    return KernelCall(
        build,
        {
            **_common(qkv, spec, pages),
            "query_start": query_start,
            "sinks": spec.sinks,
            "out": out,
            "num_tiles": -(-most_queries // each),
        },
    )


def route(
    logits: torch.Tensor,
    spec: RouteSpec,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
    expert_scale: torch.Tensor | None = None,
) -> KernelCall:
    """Shape: logits [tokens, experts]; expert_ids int32, weights float32 [tokens, k], written; bias
    and expert_scale [experts].
    """
    return KernelCall(
        builds.route(
            spec, logits.shape[1], expert_ids.shape[1], bias is not None, expert_scale is not None
        ),
        {
            "logits": logits,
            "bias": bias,
            "expert_scale": expert_scale,
            "expert_ids": expert_ids,
            "weights": weights,
            "num_experts": logits.shape[1],
            "num_chosen": expert_ids.shape[1],
            "scale": spec.scale,
            "epsilon": spec.epsilon,
            "jitter": spec.jitter,
            "groups": spec.groups,
            "kept_groups": spec.kept_groups,
            "num_tokens": logits.shape[0],
        },
    )


def best_of_block(logits: torch.Tensor, keys: torch.Tensor, sums: torch.Tensor) -> KernelCall:
    """Shape: logits [rows, vocab]; keys int64 [rows, blocks, keep]; sums [rows, blocks, 2]."""
    return KernelCall(
        builds.best_of_block(keys.shape[2]),
        {
            "logits": logits,
            "keys": keys,
            "sums": sums,
            "vocab_size": logits.shape[1],
            "num_rows": logits.shape[0],
        },
    )


def merge_blocks(
    logits: torch.Tensor,
    keys: torch.Tensor,
    sums: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    log_sums: torch.Tensor,
) -> KernelCall:
    """Shape: ids int32, values [rows, wanted <= keep], best first; log_sums [rows]."""
    return KernelCall(
        builds.merge_blocks(keys.shape[1], keys.shape[2]),
        {
            "logits": logits,
            "keys": keys,
            "sums": sums,
            "ids": ids,
            "values": values,
            "log_sums": log_sums,
            "vocab_size": logits.shape[1],
            "num_blocks": keys.shape[1],
            "num_wanted": ids.shape[1],
            "num_rows": logits.shape[0],
        },
    )

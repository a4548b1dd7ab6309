"""Launches of latent attention and its indexer: latent.py and index_keys.py.

All activations are float32; pools are float32 or bfloat16, as are the matrices of the heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.latent_operands import (
    IndexHeads,
    LatentHeads,
    LatentWeights,
    StepPages,
    Turn,
)
from ftengine.kernels.operands import PAGE_TOKENS
from ftengine.kernels.triton import builds
from ftengine.kernels.triton.calls import KernelCall, Value

_ITEMS = {torch.float32: "f32", torch.bfloat16: "bf16"}


def latent_store(
    latent: torch.Tensor,
    key: torch.Tensor,
    weights: LatentWeights,
    turn: Turn,
    positions: torch.Tensor,
    slots: torch.Tensor,
    pool: torch.Tensor,
) -> KernelCall:
    """Shape: latent [tokens, rank], key [tokens, rope], rows equally far apart; positions int32,
    slots int64 [tokens]; pool [pages, 1, 16, rank + rope].
    """
    assert latent.stride(0) == key.stride(0), "both are parts of the same rows"
    return KernelCall(
        builds.latent_store(
            _ITEMS[pool.dtype], latent.shape[1], key.shape[1], turn.half, turn.interleaved
        ),
        {
            "latent": latent,
            "key": key,
            "weight": weights.norm_weight,
            "cos": turn.cos,
            "sin": turn.sin,
            "positions": positions,
            "slots": slots,
            "pool": pool,
            "row_stride": latent.stride(0),
            "eps": weights.eps,
            "num_tokens": latent.shape[0],
        },
    )


@dataclass(frozen=True)
class HeadRows:
    """Rows of vectors of heads. apart: numbers from one head's vector to the next one's."""

    rows: torch.Tensor
    apart: int


def head_product(x: HeadRows, weight: torch.Tensor, out: HeadRows, dot: str) -> KernelCall:
    """Shape: x [tokens, heads times IN]; weight [heads, IN, OUT]; out [tokens, heads times OUT]."""
    heads, num_in, num_out = weight.shape
    tokens = x.rows.shape[0]
    return KernelCall(
        builds.head_product(_ITEMS[weight.dtype], num_in, num_out, tokens, dot),
        {
            "x": x.rows,
            "weight": weight,
            "out": out.rows,
            "x_stride": x.rows.stride(0),
            "x_head_stride": x.apart,
            "out_stride": out.rows.stride(0),
            "out_head_stride": out.apart,
            "heads": heads,
            "num_tokens": tokens,
        },
    )


@dataclass(frozen=True)
class LatentQueries:
    """What looks at latents. first: number of the first token in its step.

    Shape: absorbed float32 [tokens, heads * rank]; q [tokens, heads * head_dim]; positions int32
    [tokens].
    """

    absorbed: torch.Tensor
    q: torch.Tensor
    positions: torch.Tensor
    first: int = 0


@dataclass(frozen=True)
class LatentKeys:
    """What is looked at. chosen: places are slots of keys of each token, else pages.

    Shape: places int32 [tokens or sequences, n]; lengths int32, of the same, keys that are seen.
    """

    pool: torch.Tensor
    places: torch.Tensor
    lengths: torch.Tensor
    chosen: bool


@dataclass(frozen=True)
class LatentSpec:
    """What attention over latents is asked for. dot: product.py's names."""

    heads: LatentHeads
    weights: LatentWeights
    turn: Turn
    dot: str


def _common(spec: LatentSpec, queries: LatentQueries, keys: LatentKeys) -> dict[str, Value]:
    return {
        "absorbed": queries.absorbed,
        "q": queries.q,
        "cos": spec.turn.cos,
        "sin": spec.turn.sin,
        "temper": spec.weights.temper,
        "positions": queries.positions,
        "pool": keys.pool,
        "places": keys.places,
        "lengths": keys.lengths,
        "q_stride": queries.q.stride(0),
        "place_stride": keys.places.stride(0),
        "heads": spec.heads.count,
        "head_dim": spec.heads.head_dim,
        "scale": spec.weights.scale,
        "num_tokens": queries.absorbed.shape[0],
    }


def _look(spec: LatentSpec, keys: LatentKeys) -> builds.Look:
    return builds.Look(
        _ITEMS[keys.pool.dtype],
        spec.heads.kv_rank,
        spec.heads.rope_dim,
        spec.turn.half,
        spec.turn.interleaved,
        spec.weights.temper is not None,
        keys.chosen,
        spec.dot,
    )


def latent_split(
    spec: LatentSpec,
    queries: LatentQueries,
    keys: LatentKeys,
    sums: torch.Tensor,
    parts: torch.Tensor,
) -> KernelCall:
    """Decoding, one token per sequence; attention_merge follows.

    Shape: sums [tokens, heads, splits, 2]; parts [tokens, heads, splits, rank].
    """
    return KernelCall(
        builds.latent_split(_look(spec, keys)),
        {
            **_common(spec, queries, keys),
            "part_sums": sums,
            "parts": parts,
            "num_splits": sums.shape[2],
        },
    )


def latent_chunk(
    spec: LatentSpec,
    queries: LatentQueries,
    keys: LatentKeys,
    query_start: torch.Tensor,
    out: torch.Tensor,
) -> KernelCall:
    """Chunks of prompts. Shape: query_start int32 [sequences + 1]; out [tokens, heads * rank]."""
    return KernelCall(
        builds.latent_chunk(_look(spec, keys)),
        {
            **_common(spec, queries, keys),
            "query_start": query_start,
            "out": out,
            "first": queries.first,
            "num_sequences": query_start.shape[0] - 1,
        },
    )


def index_store(
    key: torch.Tensor,
    index: IndexHeads,
    turn: Turn,
    positions: torch.Tensor,
    slots: torch.Tensor,
    pool: torch.Tensor,
) -> KernelCall:
    """Shape: key [tokens, head_dim]; pool [pages, 1, 16, head_dim]."""
    return KernelCall(
        builds.index_store(_ITEMS[pool.dtype], index.head_dim, turn.half, turn.interleaved),
        {
            "key": key,
            "weight": index.norm_weight,
            "bias": index.norm_bias,
            "cos": turn.cos,
            "sin": turn.sin,
            "positions": positions,
            "slots": slots,
            "pool": pool,
            "row_stride": key.stride(0),
            "eps": index.eps,
            "num_tokens": key.shape[0],
        },
    )


@dataclass(frozen=True)
class IndexQueries:
    """What is compared with an indexer's keys. first: number of the first token in its step.

    Shape: q [tokens, heads * head_dim]; factors [tokens, heads]; positions int32 [tokens].
    """

    q: torch.Tensor
    factors: torch.Tensor
    positions: torch.Tensor
    first: int = 0


def index_scores(
    queries: IndexQueries,
    index: IndexHeads,
    turn: Turn,
    step: StepPages,
    pool: torch.Tensor,
    scores: torch.Tensor,
    dot: str,
) -> KernelCall:
    """Shape: pool [pages, 1, 16, head_dim]; scores [tokens, keys of the widest page table]."""
    return KernelCall(
        builds.index_scores(
            _ITEMS[pool.dtype], index.count, index.head_dim, turn.half, turn.interleaved, dot
        ),
        {
            "q": queries.q,
            "factors": queries.factors,
            "cos": turn.cos,
            "sin": turn.sin,
            "positions": queries.positions,
            "pool": pool,
            "query_start": step.query_start,
            "page_table": step.page_table,
            "scores": scores,
            "q_stride": queries.q.stride(0),
            "factor_stride": queries.factors.stride(0),
            "table_stride": step.page_table.stride(0),
            "heads": index.count,
            "scale": index.scale,
            "most_keys": scores.shape[1],
            "first": queries.first,
            "num_sequences": step.context_len.shape[0],
            "num_tokens": queries.q.shape[0],
        },
    )


def index_choose(
    scores: torch.Tensor,
    positions: torch.Tensor,
    first: int,
    step: StepPages,
    chosen: torch.Tensor,
    counts: torch.Tensor,
) -> KernelCall:
    """Shape: scores as above; chosen int32 [tokens, top_k] and counts int32 [tokens], written."""
    return KernelCall(
        builds.index_choose(),
        {
            "scores": scores,
            "positions": positions,
            "query_start": step.query_start,
            "page_table": step.page_table,
            "chosen": chosen,
            "counts": counts,
            "table_stride": step.page_table.stride(0),
            "most_keys": scores.shape[1],
            "top_k": chosen.shape[1],
            "first": first,
            "num_sequences": step.context_len.shape[0],
            "num_tokens": scores.shape[0],
        },
    )


def table_tokens(step: StepPages) -> int:
    """Tokens that the page table of a step has room for."""
    return step.page_table.shape[1] * PAGE_TOKENS

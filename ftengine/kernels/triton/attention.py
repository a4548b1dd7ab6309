"""Attention over paged keys: decoding one token per sequence, and chunks of a prompt.

Keys are cut at absolute multiples of 256. Each cut is summed for itself, 64 keys at a time, and the
cuts are merged in order: in the grid and a second launch when decoding, one after another in
the program for chunks. So no sum's order depends on batch, chunk or cached length.
Reference: attention.py; q8_0 pools as rope.py writes them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.product import product

PAGE_TOKENS = tl.constexpr(16)
SPLIT = tl.constexpr(256)
STEP = tl.constexpr(64)
GROUP = tl.constexpr(32)
NOTHING = tl.constexpr(-1e30)
"""Score of a hidden key: finite, so that rows without keys make no NaN."""


@triton.jit
def first_split(position: tl.tensor, window: tl.tensor) -> tl.tensor:
    """The first cut that a query at this position sees; window 0 = no window."""
    oldest = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    return oldest // SPLIT


@triton.jit
def key_places(
    pages: tl.tensor, token: tl.tensor, length: tl.tensor, kv_heads: tl.tensor, head: tl.tensor
) -> tl.tensor:
    """Rows of the pool, seen as [rows, head_dim], in which tokens of one head lie."""
    page = tl.load(pages + token // PAGE_TOKENS, mask=token < length, other=0).to(tl.int64)
    return (page * kv_heads + head) * PAGE_TOKENS + token % PAGE_TOKENS


@triton.jit
def load_rows(
    pool: tl.tensor,
    scales: tl.tensor,
    place: tl.tensor,
    dim: tl.tensor,
    live: tl.tensor,
    head_dim: tl.tensor,
    KV: tl.constexpr,
) -> tl.tensor:
    """Vectors of a pool as float32. Shape: place and dim broadcast to a tile."""
    value = tl.load(pool + place * head_dim + dim, mask=live, other=0).to(tl.float32)
    if KV == "q8_0":
        scale = tl.load(scales + place * (head_dim // GROUP) + dim // GROUP, mask=live, other=0.0)
        value *= scale.to(tl.float32)
    return value


@triton.jit
def attend(
    query: tl.tensor,
    position: tl.tensor,
    largest: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    start: tl.tensor,
    length: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    pages: tl.tensor,
    kv_heads: tl.tensor,
    head: tl.tensor,
    head_dim: tl.tensor,
    window: tl.tensor,
    DIM: tl.constexpr,
    KV: tl.constexpr,
    DOT: tl.constexpr,
) -> tl.tensor:
    """Fold STEP keys from `start` on into the sums of one cut."""
    token, dim = start + tl.arange(0, STEP), tl.arange(0, DIM)
    place = key_places(pages, token, length, kv_heads, head)
    live = (token < length)[:, None] & (dim < head_dim)[None, :]
    key = load_rows(keys, key_scales, place[:, None], dim[None, :], live, head_dim, KV)
    zero = tl.zeros([query.shape[0], STEP], tl.float32)
    scores = product(query, tl.trans(key), zero, DOT)
    visible = (token[None, :] <= position[:, None]) & (token < length)[None, :]
    visible &= (window <= 0) | (token[None, :] > position[:, None] - window)
    scores = tl.where(visible, scores, NOTHING)
    top = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.where(visible, tl.exp(scores - top[:, None]), 0.0)
    fade = tl.exp(largest - top)
    value = load_rows(values, value_scales, place[:, None], dim[None, :], live, head_dim, KV)
    acc = product(weights, value, acc * fade[:, None], DOT)
    return top, total * fade + tl.sum(weights, 1), acc


@triton.jit
def attend_split(
    query: tl.tensor,
    position: tl.tensor,
    split: tl.tensor,
    length: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    pages: tl.tensor,
    kv_heads: tl.tensor,
    head: tl.tensor,
    head_dim: tl.tensor,
    window: tl.tensor,
    DIM: tl.constexpr,
    KV: tl.constexpr,
    DOT: tl.constexpr,
) -> tl.tensor:
    """Largest score, sum of weights and weighted values of one cut for rows of queries."""
    largest = tl.full([query.shape[0]], NOTHING, tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    acc = tl.zeros([query.shape[0], DIM], tl.float32)
    for start in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, length), STEP):
        largest, total, acc = attend(
            query,
            position,
            largest,
            total,
            acc,
            start,
            length,
            keys,
            values,
            key_scales,
            value_scales,
            pages,
            kv_heads,
            head,
            head_dim,
            window,
            DIM,
            KV,
            DOT,
        )
    return largest, total, acc


@triton.jit
def load_queries(
    qkv: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    live: tl.tensor,
    qkv_stride: tl.tensor,
    head_dim: tl.tensor,
    scale: tl.tensor,
    DIM: tl.constexpr,
) -> tl.tensor:
    """Queries times the scale. Shape: token, head [rows] -> [rows, DIM]."""
    dim = tl.arange(0, DIM)[None, :]
    at = token.to(tl.int64)[:, None] * qkv_stride + head[:, None] * head_dim + dim
    return tl.load(qkv + at, mask=live[:, None] & (dim < head_dim), other=0.0) * scale


@triton.jit
def attention_split(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    context_len: tl.tensor,
    page_table: tl.tensor,
    part_sums: tl.tensor,
    parts: tl.tensor,
    qkv_stride: tl.tensor,
    table_stride: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    num_splits: tl.tensor,
    num_sequences: tl.tensor,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KV: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """Decoding: one cut of one sequence for the query heads of one key head.

    Shape: qkv [sequences, qkv_stride]; part_sums [sequences, heads, splits, 2]; parts [sequences,
    heads, splits, head_dim]; ROWS >= heads / kv_heads. Grid: splits, sequences, kv_heads.
    """
    split, sequence, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(context_len + sequence)
    if (split * SPLIT >= length) | (split < first_split(length - 1, window)):
        return
    per_key = heads // kv_heads
    row = tl.arange(0, ROWS)
    live = row < per_key
    token = tl.zeros([ROWS], tl.int32) + sequence
    query = load_queries(qkv, token, head * per_key + row, live, qkv_stride, head_dim, scale, DIM)
    position = tl.zeros([ROWS], tl.int32) + length - 1
    largest, total, acc = attend_split(
        query,
        position,
        split,
        length,
        keys,
        values,
        key_scales,
        value_scales,
        page_table + sequence * table_stride,
        kv_heads,
        head,
        head_dim,
        window,
        DIM,
        KV,
        DOT,
    )
    at = (sequence * heads + head * per_key + row) * num_splits + split
    tl.store(part_sums + 2 * at, largest, mask=live)
    tl.store(part_sums + 2 * at + 1, total, mask=live)
    dim = tl.arange(0, DIM)[None, :]
    place = at.to(tl.int64)[:, None] * head_dim + dim
    tl.store(parts + place, acc, mask=live[:, None] & (dim < head_dim))


@triton.jit
def attention_merge(
    part_sums: tl.tensor,
    parts: tl.tensor,
    context_len: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    num_splits: tl.tensor,
    heads: tl.tensor,
    head_dim: tl.tensor,
    window: tl.tensor,
    num_sequences: tl.tensor,
    DIM: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """Decoding: the cuts of one head in order. Shape: out [sequences, heads * head_dim].

    Grid: sequences, heads.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(context_len + sequence)
    dim = tl.arange(0, DIM)
    top = tl.full([], NOTHING, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([DIM], tl.float32)
    row = sequence * heads + head
    for split in range(first_split(length - 1, window), tl.cdiv(length, SPLIT)):
        at = row * num_splits + split
        largest = tl.load(part_sums + 2 * at)
        part = tl.load(parts + at.to(tl.int64) * head_dim + dim, mask=dim < head_dim, other=0.0)
        new = tl.maximum(top, largest)
        fade, weight = tl.exp(top - new), tl.exp(largest - new)
        total = total * fade + tl.load(part_sums + 2 * at + 1) * weight
        acc = acc * fade + part * weight
        top = new
    if SINKS:
        sink = tl.load(sinks + head)
        new = tl.maximum(top, sink)
        fade = tl.exp(top - new)
        total = total * fade + tl.exp(sink - new)
        acc = acc * fade
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + row.to(tl.int64) * head_dim + dim, result, mask=dim < head_dim)


@triton.jit
def attention_chunk(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    query_start: tl.tensor,
    context_len: tl.tensor,
    page_table: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    qkv_stride: tl.tensor,
    table_stride: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    num_tiles: tl.tensor,
    num_sequences: tl.tensor,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    DOT: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """Chunks: ROWS / HEADS queries of one sequence times the query heads of one key head.

    Shape: query_start [sequences + 1]; HEADS >= heads / kv_heads, a power of two; out [tokens,
    heads * head_dim]. Grid: tiles of queries, sequences, kv_heads.
    """
    sequence, head = tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(query_start + sequence), tl.load(query_start + sequence + 1)
    first = tl.program_id(0) * (ROWS // HEADS)
    if first >= end - begin:
        return
    per_key = heads // kv_heads
    row = tl.arange(0, ROWS)
    index, turn = first + row // HEADS, row % HEADS
    live = (index < end - begin) & (turn < per_key)
    mine = head * per_key + turn
    query = load_queries(qkv, begin + index, mine, live, qkv_stride, head_dim, scale, DIM)
    context = tl.load(context_len + sequence)
    earlier = context - (end - begin)
    position = earlier + index
    length = tl.minimum(earlier + first + ROWS // HEADS, context)
    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for split in range(first_split(earlier + first, window), tl.cdiv(length, SPLIT)):
        largest, part_total, part = attend_split(
            query,
            position,
            split,
            length,
            keys,
            values,
            key_scales,
            value_scales,
            page_table + sequence * table_stride,
            kv_heads,
            head,
            head_dim,
            window,
            DIM,
            KV,
            DOT,
        )
        new = tl.maximum(top, largest)
        fade, weight = tl.exp(top - new), tl.exp(largest - new)
        total = total * fade + part_total * weight
        acc = acc * fade[:, None] + part * weight[:, None]
        top = new
    if SINKS:
        sink = tl.load(sinks + mine, mask=live, other=NOTHING)
        new = tl.maximum(top, sink)
        fade = tl.exp(top - new)
        total = total * fade + tl.exp(sink - new)
        acc = acc * fade[:, None]
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    dim = tl.arange(0, DIM)[None, :]
    at = ((begin + index).to(tl.int64) * heads + mine)[:, None] * head_dim + dim
    tl.store(out + at, result, mask=live[:, None] & (dim < head_dim))

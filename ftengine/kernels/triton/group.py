"""Pairs of a chunk sorted by expert, on the device: what grouped_gemm.py's tiles are made of.

One program per expert: first every expert's pairs are counted, then each writes its own, in routing
order, behind those of lower numbers. The host never sees the routing.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_pairs(
    ids: tl.tensor,
    row_of: tl.tensor,
    counts: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """counts = pairs of each expert that has a row; 0 for the others.

    Shape: ids int32 [num_pairs]; row_of, counts int32 [num_experts]. Grid: experts.
    """
    expert = tl.program_id(0)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        asked = tl.load(ids + at, mask=at < num_pairs, other=-1)
        found += (asked == expert).to(tl.int32)
    there = tl.load(row_of + expert) >= 0
    tl.store(counts + expert, tl.where(there, tl.sum(found, 0), 0))


@triton.jit
def write_tiles(
    tiles: tl.tensor, row: tl.tensor, first: tl.tensor, count: tl.tensor, ROWS: tl.constexpr
) -> None:
    """One expert's tiles: bank row, first of its pairs, how many."""
    for start in range(0, count, ROWS):
        tile = tiles + 3 * (start // ROWS)
        tl.store(tile, row)
        tl.store(tile + 1, first + start)
        tl.store(tile + 2, tl.minimum(count - start, ROWS))


@triton.jit
def group_pairs(
    ids: tl.tensor,
    row_of: tl.tensor,
    counts: tl.tensor,
    pairs: tl.tensor,
    tiles: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    num_tiles: tl.tensor,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Pairs by expert, and tiles of at most ROWS of them; tiles that are left over say 0 pairs.

    Shape: counts of count_pairs; pairs int32 [num_pairs]; tiles int32 [num_tiles, 3].
    Grid: experts.
    """
    expert = tl.program_id(0)
    every = tl.arange(0, EXPERTS)
    counted = tl.load(counts + every, mask=every < num_experts, other=0)
    tiles_each = (counted + ROWS - 1) // ROWS
    if expert == num_experts - 1:
        for start in range(tl.sum(tiles_each, 0), num_tiles, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(tiles + 3 * at + 2, tl.zeros([BLOCK], tl.int32), mask=at < num_tiles)
    count = tl.load(counts + expert)
    if count == 0:
        return
    first = tl.sum(tl.where(every < expert, counted, 0), 0)
    first_tile = tl.sum(tl.where(every < expert, tiles_each, 0), 0)
    write_tiles(tiles + 3 * first_tile, tl.load(row_of + expert), first, count, ROWS)
    for start in range(0, num_pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mine = tl.load(ids + at, mask=at < num_pairs, other=-1) == expert
        place = first + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(pairs + place, at, mask=mine)
        first += tl.sum(mine.to(tl.int32), 0)

"""The largest logits of each row, sorted: what sampling needs of a vocabulary.

A first launch cuts the row in blocks and keeps the best of each, a second merges them. Equal logits
come in order of their ids; a NaN counts as largest, so that it is found. The draw stays with
sampling/, on the few numbers that come back. The second also gives log(sum(exp(row))).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(1 << 63))


@triton.jit
def sort_key(value: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """int64 that rises with the value, and falls with the id of equals."""
    bits = value.to(tl.int32, bitcast=True)
    # -0.0 and 0.0 are equal
    bits = tl.where(value == 0.0, 0, bits)
    rising = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    rising = tl.where(value != value, 0x7FFFFFFF, rising)
    return (rising.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def best_of_block(
    logits: tl.tensor,
    keys: tl.tensor,
    sums: tl.tensor,
    vocab_size: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
) -> None:
    """Sort keys of the best KEEP of each block, and the block's largest and sum of exponentials.

    Shape: logits [rows, vocab_size]; keys int64 [rows, blocks, KEEP]; sums [rows, blocks, 2].
    Grid: blocks, rows.
    """
    block, row = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    live = ids < vocab_size
    value = tl.load(logits + row.to(tl.int64) * vocab_size + ids, mask=live, other=-float("inf"))
    key = tl.where(live, sort_key(value, ids), LOWEST)
    at = row * tl.cdiv(vocab_size, BLOCK) + block
    best = tl.topk(key, KEEP)
    tl.store(keys + at * KEEP + tl.arange(0, KEEP), best)
    largest = tl.max(value, 0)
    safe = tl.where(largest == -float("inf"), 0.0, largest)
    tl.store(sums + 2 * at, largest)
    tl.store(sums + 2 * at + 1, tl.sum(tl.exp(value - safe), 0))


@triton.jit
def merge_blocks(
    logits: tl.tensor,
    keys: tl.tensor,
    sums: tl.tensor,
    ids: tl.tensor,
    values: tl.tensor,
    log_sums: tl.tensor,
    vocab_size: tl.tensor,
    num_blocks: tl.tensor,
    num_wanted: tl.tensor,
    num_rows: tl.tensor,
    BLOCKS: tl.constexpr,
    KEEP: tl.constexpr,
) -> None:
    """The best num_wanted <= KEEP of a row, sorted. Grid: rows.

    Shape: ids int32 and values float32 [rows, num_wanted]; log_sums [rows]; BLOCKS >= num_blocks.
    """
    row = tl.program_id(0)
    at = tl.arange(0, BLOCKS * KEEP)
    live = at < num_blocks * KEEP
    key = tl.load(keys + row * num_blocks * KEEP + at, mask=live, other=LOWEST)
    best = tl.topk(key, KEEP)
    place = tl.arange(0, KEEP)
    chosen = (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32)
    wanted = (place < num_wanted) & (best != LOWEST)
    value = tl.load(logits + row.to(tl.int64) * vocab_size + chosen, mask=wanted, other=0.0)
    tl.store(ids + row * num_wanted + place, chosen, mask=wanted)
    tl.store(values + row * num_wanted + place, value, mask=wanted)
    block = tl.arange(0, BLOCKS)
    there = block < num_blocks
    pair = sums + 2 * (row * num_blocks + block)
    largest = tl.load(pair, mask=there, other=-float("inf"))
    total = tl.load(pair + 1, mask=there, other=0.0)
    top = tl.max(largest, 0)
    total = tl.sum(total * tl.exp(largest - top), 0)
    tl.store(log_sums + row, top + tl.log(total))

"""Rows from a bank to slots by one list, wherever the bank is: pinned host memory or the device.

The list and its length are device data, so one launch of fixed size serves every step. Long runs
of neighbouring rows are better copied by the copy engine (gpu/stream.py).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_rows(
    source: tl.tensor,
    target: tl.tensor,
    tasks: tl.tensor,
    num_tasks: tl.tensor,
    row_words: tl.tensor,
    source_words: tl.tensor,
    target_words: tl.tensor,
    most: tl.tensor,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """target[to] = source[from] for the first num_tasks of tasks.

    Shape: tasks int32 [most, 2]: (from, to); num_tasks int32 [1]; source and target int32 words,
    rows source_words and target_words apart, of which row_words are copied. Grid: SHARE programs
    for a row, most.
    """
    task = tl.program_id(1)
    if task >= tl.load(num_tasks):
        return
    source += tl.load(tasks + 2 * task).to(tl.int64) * source_words
    target += tl.load(tasks + 2 * task + 1).to(tl.int64) * target_words
    for start in range(tl.program_id(0) * BLOCK, row_words, SHARE * BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < row_words
        words = tl.load(source + at, mask=live, other=0, eviction_policy="evict_first")
        tl.store(target + at, words, mask=live)

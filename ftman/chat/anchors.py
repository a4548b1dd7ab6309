"""Where the blocks of a prompt begin and end, as token offsets: places worth keeping state at.

Not here: which text is whose (traced.py), and the text itself (render.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from ftman.chat import traced
from ftman.chat.formats.base import ChatFormat
from ftman.chat.tokenizer import Offsets, Tokenizer
from ftman.chat.traced import TEMPLATE, content_origin, is_block, message_of


def closing_ids(tokenizer: Tokenizer, fmt: ChatFormat) -> tuple[int, ...]:
    """Tokens that close reasoning or a call in a reply; a text of several tokens is none."""
    marks = [fmt.reasoning.end] if fmt.reasoning else []
    marks += fmt.calls.closes if fmt.calls else ()
    found = (tokenizer.encode(mark.strip(), special=True) for mark in marks)
    return tuple(sorted({ids[0] for ids in found if len(ids) == 1}))


def anchors_of(
    tokenizer: Tokenizer, ids: Sequence[int], offsets: Offsets, runs: traced.Runs
) -> Iterator[int]:
    """Token offsets of content edges, message starts, and of the blocks in a message: reasoning
    and calls. A message or block starts at the last control token between the text before it and
    its own first character; a block ends behind the first control token after it."""
    starts = [start for start, _ in offsets]
    at = behind = block = 0
    current = -1
    for length, origin in [*runs, (0, TEMPLATE)]:
        message = message_of(origin)
        ends = not length
        if block and (ends or origin not in (TEMPLATE, block)):
            yield _end_of_block(tokenizer, ids, starts, behind, at)
            block = 0
        if (message >= 0 and message != current) or ends:
            yield _start_of_message(tokenizer, ids, starts, behind, at)
            current = message
        if is_block(origin) and not block:
            yield _start_of_message(tokenizer, ids, starts, behind, at)
            block = origin
        if message >= 0 and origin == content_origin(message):
            yield bisect_left(starts, at)
            yield bisect_left(starts, at + length)
        at += length
        behind = at if message >= 0 else behind


def _end_of_block(
    tokenizer: Tokenizer, ids: Sequence[int], starts: Sequence[int], behind: int, at: int
) -> int:
    low, high = bisect_left(starts, behind), bisect_left(starts, at)
    for idx in range(low, high):
        if tokenizer.is_control(ids[idx]):
            return idx + 1
    return low


def _start_of_message(
    tokenizer: Tokenizer, ids: Sequence[int], starts: Sequence[int], behind: int, at: int
) -> int:
    low, high = bisect_left(starts, behind), bisect_left(starts, at)
    for idx in range(high - 1, low - 1, -1):
        if tokenizer.is_control(ids[idx]):
            return idx
    return high

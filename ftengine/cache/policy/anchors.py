"""Where in a prompt states are worth keeping; pure."""

from __future__ import annotations

from collections.abc import Iterable

FALLBACK_TOKENS = 1024
"""Text without an anchor gets a checkpoint every so many tokens."""


def choose_anchors(anchors: Iterable[int], start: int, num_prompt: int, room: int) -> list[int]:
    """Positions after `start` at which to keep the state, ascending, at most `room`.

    The last one always leaves a single token to compute, so that the same prompt asked again costs
    no more. Where there are too many, half of the room goes to the newest, because edits cut near
    the end, and the rest is spread evenly over those before.
    """
    last = num_prompt - 1
    wanted = sorted({item for item in anchors if start < item < last} | {last})
    filled: list[int] = []
    at = start
    for item in wanted:
        filled += range(at + FALLBACK_TOKENS, item - FALLBACK_TOKENS // 2, FALLBACK_TOKENS)
        filled.append(item)
        at = item
    found = [item for item in filled if item > start]
    if len(found) <= room:
        return found
    newest = found[len(found) - (room + 1) // 2 :]
    older, count = found[: len(found) - len(newest)], room // 2
    return [older[(2 * i + 1) * len(older) // (2 * count)] for i in range(count)] + newest

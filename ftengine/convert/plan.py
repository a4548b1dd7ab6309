"""What a conversion would give and cost, from headers alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ftengine.convert.convert import read_plan
from ftengine.convert.describe import describe
from ftengine.convert.finished import facts_of_plan
from ftengine.convert.layout import Layout
from ftengine.convert.protocol import Job, Link
from ftengine.convert.window import KeptRanges, Windows

WORK_BYTES = 64 << 20


def plan_job(job: Job, link: Link) -> dict[str, Any]:
    """The plan line's content. Raises: EngineError as a conversion would before its first byte."""
    windows = Windows(link, job.files)
    try:
        source, layout = read_plan(job, KeptRanges(windows, None))
    finally:
        windows.close()
    small = sum(len(data) for data in source.small.values())
    disk_bytes = layout.total_bytes + small
    return {
        **describe(facts_of_plan(source, layout)),
        "disk_bytes": disk_bytes,
        "peak_disk_bytes": disk_bytes + staging_bytes(layout) + WORK_BYTES,
    }


def staging_bytes(layout: Layout) -> int:
    """Most bytes that wait for their partners at once, if source files arrive strictly in order.

    A bank's staging file goes when the bank is complete.
    """
    left = Counter((p.name, p.expert, p.part == "down") for p in layout.pieces if p.part)
    groups = Counter(name for name, _, _ in left)
    waiting: Counter[str] = Counter()
    most = 0
    for piece in layout.pieces:
        if not piece.part:
            continue
        group = (piece.name, piece.expert, piece.part == "down")
        left[group] -= 1
        if left[group]:
            waiting[piece.name] += piece.end - piece.start
            most = max(most, waiting.total())
            continue
        groups[piece.name] -= 1
        if not groups[piece.name]:
            del waiting[piece.name]
    return most

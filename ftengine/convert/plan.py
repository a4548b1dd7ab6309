"""What a conversion would give and cost, from headers alone."""

from __future__ import annotations

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
    """Most bytes that gates and ups without their partner may take: one bank's."""
    totals: dict[str, int] = {}
    for piece in layout.pieces:
        if piece.part in ("gate", "up"):
            totals[piece.name] = totals.get(piece.name, 0) + piece.end - piece.start
    return max(totals.values(), default=0)

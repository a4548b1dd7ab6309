"""What a conversion would give and cost, from headers alone; for unbuilt families, their sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ftengine.convert.bank_plan import bank_part
from ftengine.convert.convert import read_plan
from ftengine.convert.describe import describe
from ftengine.convert.finished import facts_of_plan
from ftengine.convert.gguf_source import read_parts
from ftengine.convert.layout import Layout
from ftengine.convert.outline import Stored, config_of_settings, outline
from ftengine.convert.protocol import Job, Link
from ftengine.convert.safetensors_source import Folder, listed_tensors
from ftengine.convert.window import KeptRanges, Windows
from ftengine.errors import LoadError

WORK_BYTES = 64 << 20


def plan_job(job: Job, link: Link) -> dict[str, Any]:
    """The plan line's content. Raises: EngineError as a conversion would before its first byte."""
    windows = Windows(link, job.files)
    try:
        return _exact(job, KeptRanges(windows, None))
    finally:
        windows.close()


def outline_job(job: Job, link: Link) -> dict[str, Any]:
    """The plan, or the sizes of what cannot be converted yet: then `unbuilt` says why.

    Raises: EngineError where not even the headers can be read.
    """
    windows = Windows(link, job.files)
    kept = KeptRanges(windows, None)
    try:
        return _exact(job, kept)
    except LoadError as error:
        return {**_outlined(job, kept), "unbuilt": error.message}
    finally:
        windows.close()


def _exact(job: Job, kept: KeptRanges) -> dict[str, Any]:
    source, layout = read_plan(job, kept)
    small = sum(len(data) for data in source.small.values())
    disk_bytes = layout.total_bytes + small
    return {
        **describe(facts_of_plan(source, layout)),
        **_elements(layout),
        "disk_bytes": disk_bytes,
        "peak_disk_bytes": disk_bytes + staging_bytes(layout) + WORK_BYTES,
    }


def _elements(layout: Layout) -> dict[str, int]:
    """Elements of one expert; elements and bytes of what every token passes through."""
    tied = not any(item.name == "head" for item in layout.tensors)
    beside = {name for item in layout.tensors for name in (item.scales, item.factor)}
    dense = [item for item in layout.tensors if item.name not in beside]
    read = [item for item in dense if tied or item.name != "embed"]
    parts = layout.banks[0].parts if layout.banks else ()
    return {
        "expert_params": sum(math.prod(part.shape) for part in parts),
        "dense_params": sum(math.prod(item.shape) for item in read),
        "dense_read_bytes": sum(t.bytes for t in layout.tensors if tied or t.name != "embed"),
    }


def _outlined(job: Job, kept: KeptRanges) -> dict[str, Any]:
    if job.source == "gguf":
        parts = read_parts(job, kept, any_family=True)
        config = config_of_settings(parts[0].header.values)
        stored = [Stored(t.name, t.end - t.start) for p in parts for t in p.header.tensors]
        return outline(config, stored, job.source)
    folder = Folder(job, kept)
    config = folder.object("config.json") or {}
    return outline(config, _stored(folder), job.source)


def _stored(folder: Folder) -> Iterator[Stored]:
    for item in listed_tensors(folder):
        yield Stored(item.tensor.name, item.tensor.end - item.tensor.start)


def staging_bytes(layout: Layout) -> int:
    """Most bytes that wait for their partners at once, if source files arrive strictly in order.

    A bank's staging file goes when the bank is complete.
    """
    left = Counter((p.name, p.expert, bank_part(p.part)) for p in layout.pieces if p.part)
    groups = Counter(name for name, _, _ in left)
    waiting: Counter[str] = Counter()
    most = 0
    for piece in layout.pieces:
        if not piece.part:
            continue
        group = (piece.name, piece.expert, bank_part(piece.part))
        left[group] -= 1
        if left[group]:
            waiting[piece.name] += piece.end - piece.start
            most = max(most, waiting.total())
            continue
        groups[piece.name] -= 1
        if not groups[piece.name]:
            del waiting[piece.name]
    return most

"""`ft ps [PREFIX] [--experts | --cache | --queue]`: loaded models, or what happens inside them.

Starts no manager: where none runs, nothing is loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from ftman.cli.client import ManagerClient
from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import clock_span, human_bytes, until
from ftman.clock import SYSTEM
from ftman.errors import NotFoundError
from ftman.names import parse_name

PAGE_TOKENS = 16
HEADER = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the table."""
    models, queue = _asked(args, session)
    if args.queue:
        return _show_queue(queue, session)
    if session.out.as_json:
        session.out.json_line({"models": models})
    elif args.experts or args.cache:
        line_of = experts_line if args.experts else cache_line
        for model in models:
            session.out.data(line_of(model))
    else:
        session.out.data(running_table(models, SYSTEM.wall()))
        if queue:
            session.out.note(queue_line(queue))
    return 0


def _asked(
    args: argparse.Namespace, session: Session
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The models asked for and the queue, as the running manager tells them."""
    manager = session.running_manager()
    if manager is None:
        session.out.note("the ft manager is not running, so no model is loaded")
        return [], []
    with manager:
        inside = args.experts or args.cache
        reply = manager.get("/api/ft/experts" if inside else "/api/ps")
        queue = [] if inside else _queue(manager)
    models = [m for m in reply.get("models") or [] if m["name"].startswith(args.prefix)]
    if args.queue:
        queue = [item for item in queue if item["model"].startswith(args.prefix)]
    if inside and not models:  # a table shows its header at least
        session.out.note("no such model is loaded" if args.prefix else "no model is loaded")
    return models, queue


def _queue(manager: ManagerClient) -> list[Mapping[str, Any]]:
    try:
        return list(manager.get("/api/ft/queue").get("queue") or ())
    except NotFoundError:  # an older manager
        return []


def _show_queue(queue: list[Mapping[str, Any]], session: Session) -> int:
    if session.out.as_json:
        session.out.json_line({"queue": queue})
        return 0
    rows = [
        (
            str(item["position"]),
            item["model"],
            clock_span(item["wait_s"]),
            item["reason"],
            item["request_id"],
        )
        for item in queue
    ]
    session.out.data(table(("POSITION", "MODEL", "WAIT", "REASON", "REQUEST"), rows))
    return 0


def entries_named(models: Iterable[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """The loaded models a name means: that very one, or all its tags where it leaves that open."""
    models, name = list(models), parse_name(text)
    exact = [model for model in models if model["name"] == name.short]
    if exact or not name.asks_latest:
        return exact
    return [model for model in models if parse_name(model["name"]).stem == name.stem]


def queue_line(queue: list[Mapping[str, Any]]) -> str:
    """One line about everybody who waits."""
    longest = max(item["wait_s"] for item in queue)
    who = "1 request waits" if len(queue) == 1 else f"{len(queue)} requests wait"
    return f"{who}, at most {clock_span(longest)}: {queue[0]['reason']}. All: ft ps --queue"


def running_table(models: list[Mapping[str, Any]], now_wall_s: float) -> str:
    """The table of /api/ps entries."""
    rows = [
        (
            model["name"],
            model["digest"][:12],
            human_bytes(model["size"]),
            processor(model["size"], model.get("size_vram", 0)),
            window(model),
            until(model["expires_at"], now_wall_s),
        )
        for model in models
    ]
    return table(HEADER, rows)


def window(model: Mapping[str, Any]) -> str:
    """Tokens of the context, and how they are kept where that is not as they are computed."""
    kept = (model.get("ft") or {}).get("kv_format") or ""
    tokens = str(model.get("context_length", ""))
    return f"{tokens} {kept}" if "q8_0" in kept else tokens


def experts_line(model: Mapping[str, Any]) -> str:
    """One model's line of --experts. Counts are since it was loaded."""
    stats = model.get("stats")
    if not stats:
        return f"{model['name']}   dense model, no routed experts"
    parts = [model["name"], _slots(stats)]
    asked = stats["hits"] + stats["misses"]
    if stats["slots"] and asked:
        parts.append(f"hit {_percent(stats['hits'], asked)}")
    served = stats["fills"] + stats["on_cpu"]
    if stats["slots"] and served:
        filled = _percent(stats["fills"], served)
        parts.append(f"misses: {filled} filled, {_percent(stats['on_cpu'], served)} on CPU")
        parts.append(_link(model["link_bytes_per_s"], stats))
    speed = f"{model['tokens_per_s']:.0f} tok/s"
    if model.get("last_step_s") is not None:
        speed += f", last token {model['last_step_s']:.2f} s ago"
    return "   ".join([*parts, speed])


def cache_line(model: Mapping[str, Any]) -> str:
    """One model's line of --cache. Counts are since it was loaded."""
    stats = model.get("cache")
    if not stats or not stats["enabled"]:
        return f"{model['name']}   prefix cache off"
    kept = model.get("kv_format")
    size = f"KV {kept} {human_bytes(model['kv_bytes'])}" if kept else ""
    parts = [model["name"], *filter(None, (size,))]
    parts.append(f"{stats['pages'] * PAGE_TOKENS:,} tokens kept")
    if stats["checkpoints"]:
        size = human_bytes(stats["checkpoints"] * stats["checkpoint_bytes"])
        parts.append(f"{stats['checkpoints_used']} of {stats['checkpoints']} states ({size})")
    asked = stats["looked_up_tokens"]
    if asked:
        hit = stats["hit_tokens"]
        parts.append(f"reused {_percent(hit, asked)} of {asked:,} prompt tokens")
        parts.append(f"recomputed {stats['recomputed_tokens']:,}")
    parts += _parked(stats)
    return "   ".join(parts)


def _parked(stats: Mapping[str, Any]) -> list[str]:
    """What the prefix cache gave up and is kept beside it; nothing where nothing may be."""
    sizes = [
        f"{human_bytes(stats[f'{name}_bytes'])} of {human_bytes(stats[f'{name}_limit_bytes'])} {at}"
        for name, at in (("parked", "in memory"), ("parked_file", "on disk"))
        if stats.get(f"{name}_limit_bytes")
    ]
    if not sizes:
        return []
    back = f", {stats['returned_tokens']:,} tokens came back" if stats["returned_tokens"] else ""
    return [f"parked {', '.join(sizes)}{back}"]


def _slots(stats: Mapping[str, Any]) -> str:
    if not stats["slots"]:
        return f"all {stats['total']:,} experts on CPU"
    share = _percent(stats["slots"], stats["total"])
    return f"slots {stats['slots']:,} of {stats['total']:,} ({share})"


def _link(bytes_per_s: float | None, stats: Mapping[str, Any]) -> str:
    if bytes_per_s is None:
        return f"link {human_bytes(stats['link_bytes'])} in all (emulated, no rate)"
    return f"link {bytes_per_s / 1e9:.1f} GB/s"


def _percent(part: float, whole: float) -> str:
    return f"{round(100 * part / whole)} %"


def processor(size: int, size_vram: int) -> str:
    """Where the weights are: "100% CPU", "34%/66% CPU/GPU"."""
    if size_vram == 0:
        return "100% CPU"
    if size_vram == size:
        return "100% GPU"
    if size_vram > size or size == 0:
        return "Unknown"
    cpu = round((size - size_vram) / size * 100)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"

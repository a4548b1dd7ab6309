"""`ft ps [PREFIX] [--experts | --cache]`: loaded models, or their experts or prefix caches."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes, until
from ftman.clock import SYSTEM

PAGE_TOKENS = 16
HEADER = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the table."""
    with session.manager() as manager:
        inside = args.experts or args.cache
        reply = manager.get("/api/ft/experts" if inside else "/api/ps")
    models = [m for m in reply.get("models") or [] if m["name"].startswith(args.prefix)]
    if session.out.as_json:
        session.out.json_line({"models": models})
    elif args.experts:
        session.out.data("\n".join(experts_line(model) for model in models))
    elif args.cache:
        session.out.data("\n".join(cache_line(model) for model in models))
    else:
        session.out.data(running_table(models, SYSTEM.wall()))
    return 0


def running_table(models: list[Mapping[str, Any]], now_wall_s: float) -> str:
    """The table of /api/ps entries."""
    rows = [
        (
            model["name"],
            model["digest"][:12],
            human_bytes(model["size"]),
            processor(model["size"], model.get("size_vram", 0)),
            str(model.get("context_length", "")),
            until(model["expires_at"], now_wall_s),
        )
        for model in models
    ]
    return table(HEADER, rows)


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
    parts = [model["name"], f"{stats['pages'] * PAGE_TOKENS:,} tokens kept"]
    if stats["checkpoints"]:
        size = human_bytes(stats["checkpoints"] * stats["checkpoint_bytes"])
        parts.append(f"{stats['checkpoints_used']} of {stats['checkpoints']} states ({size})")
    asked = stats["looked_up_tokens"]
    if asked:
        hit = stats["hit_tokens"]
        parts.append(f"reused {_percent(hit, asked)} of {asked:,} prompt tokens")
        parts.append(f"recomputed {stats['recomputed_tokens']:,}")
    return "   ".join(parts)


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

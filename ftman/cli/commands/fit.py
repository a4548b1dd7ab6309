"""`ft fit MODEL [--device PROFILE]`: what a model will do on a machine, computed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ftman.cli.commands.pull import place_or_name
from ftman.cli.session import Session
from ftman.forecast import check_question
from ftman.names import parse_name

EXIT_NO_FIT = 3


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the forecast; status 3 when the model cannot run there."""
    device = args.device or ""
    check_question(device, args.context)
    model = place_or_name(args.model)
    if "://" not in model:
        parse_name(model)
    body = {"model": model, "device": device, "context": args.context}
    body = {key: value for key, value in body.items() if value not in (None, "")}
    with session.manager() as manager:
        answer = manager.post("/api/ft/fit", body, patient=True)
    if session.out.as_json:
        session.out.json_line(answer)
    else:
        session.out.data(fit_text(args.model, answer))
    return 0 if answer["fits"] else EXIT_NO_FIT


def fit_text(model: str, answer: Mapping[str, Any]) -> str:
    """A forecast as people read it."""
    if not answer["fits"]:
        refusal = f"{model} does not fit on {answer['device']}: {answer['reason']}"
        return "\n".join([refusal, *_sizes(answer), *_unbuilt(answer)])
    lines = [
        f"{model} on {answer['device']} with {answer['context_tokens']} tokens of context",
        f"  memory     RAM {_gb(answer['ram_bytes'])}, GPU {_gb(answer['vram_bytes'])}, "
        f"disk {_gb(answer['disk_bytes'])}",
    ]
    if answer["expert_slots"]:
        lines.append(
            f"  experts    {answer['expert_slots']} in slots ({answer['cached_share']:.0%}), "
            f"{answer['miss_rate']:.0%} misses, strategy {answer['strategy']}"
        )
    if answer["tier"] == "disk":
        lines.append("  disk       its experts exceed RAM and are read from disk: slow")
    lines.append(
        f"  expected   {answer['tokens_per_s']:.1f} tokens/s, first token after "
        f"{answer['ttft_s']:.1f} s at {answer['prompt_tokens']} tokens (computed, not measured)"
    )
    return "\n".join([*lines, *_sizes(answer), *_unbuilt(answer)])


def _sizes(answer: Mapping[str, Any]) -> list[str]:
    if not answer.get("download_bytes"):
        return []
    return [f"  download   {_gb(answer['download_bytes'])} in {answer['num_files']} files"]


def _unbuilt(answer: Mapping[str, Any]) -> list[str]:
    reason = answer.get("unbuilt")
    return [f"  not yet    family not built yet: {reason}"] if reason else []


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"

"""`python -m ftengine.calibrate [--ftw DIR] [--threads N]`: NDJSON on stdout, then a profile."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from ftengine.calibrate.cpu import FORMATS, measure_experts, measure_read
from ftengine.calibrate.disk import measure_disk
from ftengine.calibrate.profile import Profile
from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftman.clock import SYSTEM, Clock


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; exit status 1 with one {"error"} line when it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m ftengine.calibrate")
    parser.add_argument("--ftw", type=Path, default=None, help="a model whose disk is measured too")
    parser.add_argument("--threads", type=int, default=0, help="0 = one per usable core")
    parser.add_argument("--cpu-target", default="", help="force a kernel target")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    torch.set_num_threads(1)
    try:
        profile = calibrate(given.ftw, given.threads, given.cpu_target, SYSTEM)
    except EngineError as error:
        _say({"error": {"code": error.code, "message": error.message, "hint": ""}})
        return 1
    _say({"profile": profile.to_json()})
    return 0


def calibrate(folder: Path | None, threads: int, cpu_target: str, clock: Clock) -> Profile:
    """Measure this machine; takes a few seconds and about 400 MB.   Raises: EngineError."""
    started = clock.monotonic()
    kernels = NativeKernels.load(num_threads=threads, cpu_target=cpu_target or None)
    total = len(FORMATS) + 2
    _progress("memory", 0, total)
    read = measure_read(kernels, clock)
    experts = {}
    for done, fmt in enumerate(FORMATS, start=1):
        _progress(f"experts {fmt}", done, total)
        experts[fmt] = measure_experts(kernels, fmt, clock)
    _progress("disk", total - 1, total)
    disk = measure_disk(folder, clock) if folder else 0.0
    info = kernels.info()
    return Profile(
        info.threads, info.target, read, experts, disk, round(clock.monotonic() - started, 3)
    )


def _progress(phase: str, completed: int, total: int) -> None:
    _say({"progress": {"phase": phase, "completed": completed, "total": total}})


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

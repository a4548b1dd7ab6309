"""What continuous integration runs: format, lint, types, tests. `python -m tests.check [--all]`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ("-n", "2", "--dist", "loadfile")
"""Most tests wait more than they compute.

A file stays in one process, and its fixtures with it.
"""


def main(arguments: list[str]) -> int:
    """Run each step; the first one that fails ends the run with its exit status."""
    python = sys.executable
    steps = [
        ("format", [python, "-m", "ruff", "format", "--check", "."]),
        ("lint", [python, "-m", "ruff", "check", "."]),
        ("types", [python, "-m", "mypy"]),
        ("tests", [python, "-m", "pytest", "-q", *WORKERS, *_selection(arguments)]),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    for name, command in steps:
        started = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        seconds = time.monotonic() - started
        print(f"{name}: {'ok' if status == 0 else 'FAILED'} ({seconds:.0f} s)", flush=True)  # noqa: T201
        if status:
            return status
    return 0


def _selection(arguments: list[str]) -> list[str]:
    if "--all" in arguments:
        return ["-m", "not gpu and not network", "--timeout", "900"]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

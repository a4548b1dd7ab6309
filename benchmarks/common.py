"""What every benchmark shares: workers behind pipes, interleaved rounds, one closing JSON line."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKED_COMMIT = ROOT / "COMMIT"
"""In an archive that travelled without its repository: the commit it was packed from."""


class WorkerProcess:
    """A measured engine in its own process, so that no two share threads or caches."""

    def __init__(self, python: str, script: str):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [python, str(ROOT / "benchmarks" / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer. Raises: RuntimeError when the worker died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker by closing its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def interleave(rounds: int, **measures: Callable[[], float]) -> dict[str, list[float]]:
    """Run A B A B ... so that a change of the machine hits both alike."""
    samples: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            samples[name].append(measure())
    return samples


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over rounds of theirs / ours for times: above 1 means ours is faster."""
    return statistics.median(t / o for o, t in zip(ours, theirs, strict=True))


def peer_python() -> str:
    """The interpreter with llama.cpp. Ends with a message when it is not set."""
    python = os.environ.get("FT_PEER_PYTHON", "")
    if not python or not Path(python).exists():
        sys.exit(
            "FT_PEER_PYTHON must name a Python with llama-cpp-python: benchmarks/peers.sh makes one"
        )
    return python


def commit() -> str:
    """Short hash of the checkout, with "+" when it has changes."""
    if PACKED_COMMIT.is_file():
        return PACKED_COMMIT.read_text().strip()
    head = _git("rev-parse", "--short", "HEAD") or "none"
    return head + ("+" if _git("status", "--porcelain") else "")


def report(name: str, ratios: dict[str, float], measured: dict[str, Any]) -> None:
    """Print the one JSON line that ends a benchmark."""
    line = {"name": name, "ratios": ratios, "measured": measured, "commit": commit()}
    print(json.dumps(line, sort_keys=True))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:  # no git here
        return ""
    return done.stdout.strip()

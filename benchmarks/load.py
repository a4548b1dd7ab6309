"""Seconds and memory of a load, ours against llama.cpp with its repacking, and what hashing adds.

    python -m benchmarks.load MODEL.gguf ...

Every sample is a process of its own, in turns; its files were read just before, so that they are in
the page cache; imports are not counted. Memory is what is resident after a prompt of 64 tokens,
mapped files included, the interpreter and its libraries too; of ours once the weights were moved
from the page cache. In the unhashed load only sizes are checked.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import WorkerProcess, peer_python, report
from benchmarks.side_by_side import Asked, converted, parse
from ftman import files

CONTEXT_TOKENS = 512
PROMPT_TOKENS = 64
Sample = dict[str, float]


def load_once(start: Callable[[], WorkerProcess], asked: Asked, **how: Any) -> Sample:
    """One load. Units: load_s of the load alone, start_s with the process's start; bytes."""
    started = time.perf_counter()
    worker = start()
    try:
        size = {"threads": asked.threads, "context": CONTEXT_TOKENS}
        ready = worker.ask(**how, **size)
        start_s = time.perf_counter() - started
        given = random.Random(1)
        worker.ask(prefill=[given.randrange(100, ready["vocab"]) for _ in range(PROMPT_TOKENS)])
        resident = worker.ask(resident=True)
    finally:
        worker.close()
    return {"load_s": ready["seconds"], "start_s": start_s, **resident}


def our_worker() -> WorkerProcess:
    """An engine of ours, not loaded yet."""
    return WorkerProcess(sys.executable, "worker_ours.py")


def peer_worker() -> WorkerProcess:
    """llama.cpp, not loaded yet."""
    return WorkerProcess(peer_python(), "worker_llama.py")


def ratios_of(stem: str, samples: dict[str, list[Sample]]) -> dict[str, float]:
    """load: theirs / ours in seconds; memory: ours / theirs; hashing: hashed / unhashed."""

    def over(first: str, second: str, key: str) -> float:
        pairs = zip(samples[first], samples[second], strict=True)
        return round(statistics.median(a[key] / b[key] for a, b in pairs), 3)

    return {
        f"load_{stem}": over("peer", "ours", "load_s"),
        f"memory_{stem}": over("ours", "peer", "all"),
        f"hashing_{stem}": over("ours", "unhashed", "load_s"),
    }


def compare(asked: Asked, gguf: Path, ratios: dict[str, float]) -> dict[str, Any]:
    """Add this model's ratios; the medians of what was measured."""
    with converted(gguf, asked.keep) as ftw:
        ours: dict[str, Any] = {"load": str(ftw), "compute": asked.compute, "settle": False}
        kinds: dict[str, tuple[list[Path], Callable[[], Sample]]] = {
            "peer": ([gguf], lambda: load_once(peer_worker, asked, load=str(gguf.absolute()))),
            "ours": ([*ftw.iterdir()], lambda: load_once(our_worker, asked, **ours)),
            "unhashed": ([], lambda: load_once(our_worker, asked, **ours, hashed=False)),
        }
        samples: dict[str, list[Sample]] = {name: [] for name in kinds}
        for _ in range(asked.rounds):
            for name, (read, sample) in kinds.items():
                _warm(read)
                samples[name].append(sample())
        size = files.tree_bytes(ftw)
    ratios.update(ratios_of(gguf.stem, samples))
    return {"bytes": size, **{name: _medians(found) for name, found in samples.items()}}


def _warm(paths: list[Path]) -> None:
    """Have files in the page cache."""
    chunk = bytearray(16 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as reader:
            while reader.readinto(chunk):
                pass


def _medians(samples: list[Sample]) -> dict[str, float]:
    found = {key: statistics.median(one[key] for one in samples) for key in samples[0]}
    seconds = {key: round(value, 3) for key, value in found.items() if key.endswith("_s")}
    return seconds | {f"{key}_mb": round(v / 1e6) for key, v in found.items() if key not in seconds}


def main() -> None:
    """Measure every model and print one JSON line."""
    asked = parse(__doc__ or "")
    ratios: dict[str, float] = {}
    told = {gguf.stem: compare(asked, gguf, ratios) for gguf in asked.models}
    report("load", ratios, {"threads": asked.threads, "rounds": asked.rounds, **told})


if __name__ == "__main__":
    main()

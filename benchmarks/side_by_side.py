"""Ours and llama.cpp on one GGUF in one run: the set-up that decode.py and prefill.py share."""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ROOT, WorkerProcess, peer_python

CONTEXT = 4096


@dataclass
class Pair:
    """Two loaded engines and what to feed them."""

    ours: WorkerProcess
    peer: WorkerProcess
    rounds: int
    threads: int
    vocab: int
    random: random.Random
    probes: list[float]

    def prompt(self, tokens: int) -> list[int]:
        """Ids drawn at random, the same for both engines."""
        return [self.random.randrange(100, self.vocab) for _ in range(tokens)]

    def probe(self) -> None:
        """Take one bandwidth sample."""
        self.probes.append(self.ours.ask(probe=True)["bytes_per_s"] / 1e9)

    def context(self) -> dict[str, float | int]:
        """What a reader needs to judge the figures."""
        return {
            "threads": self.threads,
            "rounds": self.rounds,
            "read_gb_per_s": round(statistics.median(self.probes), 1),
        }


@contextmanager
def open_pair(description: str) -> Iterator[Pair]:
    """Parse the command line, convert the GGUF, start both engines, and end them afterwards."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compute", default="bfloat16")
    given = parser.parse_args()
    peer = WorkerProcess(peer_python(), "worker_llama.py")
    ours = WorkerProcess(sys.executable, "worker_ours.py")
    with tempfile.TemporaryDirectory() as folder:
        ftw = Path(folder) / "ftw"
        command = [sys.executable, "-m", "ftengine.convert", "local", str(given.gguf), str(ftw)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        try:
            size = {"threads": given.threads, "context": CONTEXT}
            ready = peer.ask(load=str(given.gguf.absolute()), **size)
            print("peer", ready, file=sys.stderr)
            print("ours", ours.ask(load=str(ftw), compute=given.compute, **size), file=sys.stderr)
            yield Pair(
                ours, peer, given.rounds, given.threads, ready["vocab"], random.Random(1), []
            )
        finally:
            ours.close()
            peer.close()

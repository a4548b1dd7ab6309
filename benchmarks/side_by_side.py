"""Ours and llama.cpp on one GGUF in one run: what decode, prefill, streams and load share."""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import ROOT, WorkerProcess, peer_python
from ftengine.loader.ftw import FtwModel
from ftengine.loader.load import read_model_config

CONTEXT = 4096
NEAR_NS = 110.0
"""Below this a cache line goes from one CPU to the other inside a chiplet, about 40 against 200."""


@dataclass(frozen=True)
class Asked:
    """The command line. keep: where converted models stay between runs, None = nowhere.

    Units: prompt in tokens before those that are timed, 0 where a benchmark has its own lengths.
    """

    models: tuple[Path, ...]
    rounds: int
    threads: int
    compute: str
    keep: Path | None = None
    activations: str = "auto"
    prompt: int = 0


@dataclass
class Pair:
    """Two loaded engines and what to feed them. peers: llama.cpp, by the name of its setting.

    Units: token_bytes of weights that one token must read.
    """

    ours: WorkerProcess
    peers: dict[str, WorkerProcess]
    asked: Asked
    vocab: int
    token_bytes: int
    probes: list[float] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def prompt(self, tokens: int) -> list[int]:
        """Ids drawn at random."""
        return [self.random.randrange(100, self.vocab) for _ in range(tokens)]

    def probe(self) -> tuple[str, float]:
        """One sample of the placement of the CPUs and of the read bandwidth, in GB/s."""
        found = self.ours.ask(probe=True)
        rate = found["bytes_per_s"] / 1e9
        self.probes.append(rate)
        return "near" if found["hand_over_ns"] < NEAR_NS else "far", rate

    def context(self) -> dict[str, float | int]:
        """What a reader needs to judge the figures."""
        return {
            "threads": self.asked.threads,
            "rounds": self.asked.rounds,
            "read_gb_per_s": round(statistics.median(self.probes), 1),
        }


def parse(description: str, prompt: int = 0) -> Asked:
    """The command line of a comparison. prompt: its usual length, where it can be chosen."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("gguf", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compute", default="bfloat16")
    parser.add_argument("--keep", type=Path, help="folder in which converted models stay")
    parser.add_argument("--activations", default="auto", help="of ours: auto or int8")
    if prompt:
        parser.add_argument("--prompt", type=int, default=prompt, help="tokens before those timed")
    given = parser.parse_args()
    if prompt and given.prompt < 1:
        parser.error(f"--prompt must be 1 or more, not {given.prompt}")
    asked = (tuple(given.gguf), given.rounds, given.threads, given.compute, given.keep)
    return Asked(*asked, given.activations, given.prompt if prompt else 0)


@contextmanager
def converted(gguf: Path, keep: Path | None) -> Iterator[Path]:
    """The FTW of a GGUF: made for the time being, or once where it is to stay."""
    with tempfile.TemporaryDirectory() as folder:
        ftw = Path(folder) / "ftw" if keep is None else keep / gguf.stem
        if not ftw.exists():
            command = [sys.executable, "-m", "ftengine.convert", "local", str(gguf), str(ftw)]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        yield ftw


@contextmanager
def open_pair(
    asked: Asked, gguf: Path, context: int = CONTEXT, parallel: int = 1
) -> Iterator[Pair]:
    """Convert the GGUF, start both engines, and end them afterwards.

    K-quants meet llama.cpp twice, with and without its repacking: neither is faster everywhere.
    parallel: sequences of ours that run at once, each of `context` tokens.
    """
    with converted(gguf, asked.keep) as ftw:
        token_bytes, formats = _weights(ftw)
        both = any(name.endswith("_k") for name in formats)
        settings = {"peer": True, "peer_plain": False} if both else {"peer": True}
        peers = {name: WorkerProcess(peer_python(), "worker_llama.py") for name in settings}
        ours = WorkerProcess(sys.executable, "worker_ours.py")
        try:
            size = {"threads": asked.threads, "context": context}
            for name, peer in peers.items():
                ready = peer.ask(load=str(gguf.absolute()), repack=settings[name], **size)
                print(name, ready, file=sys.stderr)
            compute = {"compute": asked.compute, "activations": asked.activations}
            told = ours.ask(load=str(ftw), parallel=parallel, **compute, **size)
            print("ours", told, file=sys.stderr)
            yield Pair(ours, peers, asked, ready["vocab"], token_bytes)
        finally:
            for worker in (ours, *peers.values()):
                worker.close()


def best_ratio(samples: Mapping[str, Sequence[float]]) -> float:
    """Median over rounds of (the faster peer's seconds / ours)."""
    ours = samples["ours"]
    peers = [found for name, found in samples.items() if name != "ours"]
    fastest = min(peers, key=statistics.median)
    return statistics.median(t / o for t, o in zip(fastest, ours, strict=True))


def _weights(ftw: Path) -> tuple[int, set[str]]:
    """Bytes of weights that a token reads, and the formats of experts."""
    with FtwModel.open(ftw) as model:
        spec = read_model_config(model)
        slots = {f"layers.{i}.experts": 1 for i in range(len(spec.layers))}
        for index, layer in enumerate(spec.layers):
            router = getattr(layer.feed_forward, "router", None)
            if router is not None:
                slots[f"layers.{index}.experts"] = router.num_experts_per_tok
        dense = sum(
            item.bytes for item in model.index.tensors if spec.tied_head or item.name != "embed"
        )
        routed = sum(bank.row_bytes * slots.get(bank.name, 1) for bank in model.index.banks)
        formats = {part.format for bank in model.index.banks for part in bank.parts}
        return dense + routed, formats | {item.format for item in model.index.tensors}

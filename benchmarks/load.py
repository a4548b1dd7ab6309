"""What hashing costs at load: the same model loaded with and without its checksums, interleaved.

    python -m benchmarks.load MODEL.gguf | FTW_FOLDER

A dense GGUF is upcycled to 10 experts first, about 500 MB for SmolLM2-135M Q4_1. Only sizes are
checked in the unhashed load; nothing else differs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from benchmarks.common import ROOT, interleave, report
from ftengine.config import EngineConfig
from ftengine.loader.ftw import FtwModel
from ftengine.runtime import assemble
from ftengine.runtime.engine import Engine
from ftman import files

CONTEXT_TOKENS = 512


class _Unhashed(FtwModel):
    """The same folder, opened by its sizes alone."""

    @classmethod
    def open(cls, path: Path | str, check: str = "sizes") -> FtwModel:
        del check
        return FtwModel.open(path)


def load_s(folder: Path) -> float:
    """Seconds of one load."""
    engine = Engine(EngineConfig(folder, CONTEXT_TOKENS))
    started = time.perf_counter()
    engine.load()
    return time.perf_counter() - started


def unhashed_load_s(folder: Path) -> float:
    """Seconds of one load that takes the bytes as they come."""
    with mock.patch.object(assemble, "FtwModel", _Unhashed):
        return load_s(folder)


@contextmanager
def folder_of(given: Path, experts: int) -> Iterator[Path]:
    """The FTW folder itself, or one made of a GGUF for the time being."""
    if given.is_dir():
        yield given
        return
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "ftw"
        recipe = ("--derive", f"upcycle:{experts}:2") if experts else ()
        command = [sys.executable, "-m", "ftengine.convert", "local", str(given), str(target)]
        subprocess.run([*command, *recipe], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        yield target


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf | FTW_FOLDER")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--experts", type=int, default=10, help="0: as the model is")
    options = parser.parse_args()
    with folder_of(options.model, options.experts) as folder:
        size = files.tree_bytes(folder)
        unhashed_load_s(folder)
        samples = interleave(
            options.rounds,
            hashed=lambda: load_s(folder),
            unhashed=lambda: unhashed_load_s(folder),
        )
    pairs = zip(samples["hashed"], samples["unhashed"], strict=True)
    ratio = statistics.median(hashed / unhashed for hashed, unhashed in pairs)
    seconds = {name: round(statistics.median(found), 3) for name, found in samples.items()}
    best = {name: round(min(found), 3) for name, found in samples.items()}
    report(
        "load",
        {"hashed_over_unhashed": round(ratio, 3)},
        {"bytes": size, "median_s": seconds, "best_s": best, "rounds": options.rounds},
    )


if __name__ == "__main__":
    main()

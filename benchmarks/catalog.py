"""What a full catalog costs: the time of `ft list` over start-up, and of the manager's start.

A store with many small installed models is made, each with texts of its own. `ft version` is the
start-up of every verb, `ft ps` (nothing loaded) of those that ask the manager; `ft list` and they
run in turns beside one manager. A manager is started on the same store and on an empty one, in
turns, until it answers.

    .venv/bin/python -m benchmarks.catalog [--models 200] [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import interleave, report
from ftman.config import Paths
from tests.e2e.processes import REAL, ROOT, manager_process
from tests.ftman.gateway.serving import Tiny, install

LIMIT_LIST_S = 0.3
LIMIT_START_S = 2.0


def main() -> int:
    """Measure, print, and return 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ft-catalog-") as folder:
        full, empty = Path(folder) / "full", Path(folder) / "empty"
        fill(full, args.models)
        lists = measure_list(full, args.models, args.rounds)
        starts = interleave(
            args.rounds, full=lambda: started_s(full), empty=lambda: started_s(empty)
        )
    return told(args.models, lists, starts)


def fill(home: Path, count: int) -> None:
    """Install models, each with texts and an index of its own."""
    paths = Paths(home, home / "models")
    for number in range(count):
        system = f"You are model {number}."
        context = 512 + number
        tiny = Tiny(f"model-{number}:latest", system=system, seed=number % 256, context=context)
        install(paths, tiny)


def measure_list(home: Path, count: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of `ft list`, `ft ps` and `ft version`, in turns, beside one manager."""
    with manager_process(home, REAL) as manager:
        variables = environment(home, FT_HOST=manager.url.removeprefix("http://"))
        shown = ft(variables, "list").stdout.splitlines()
        assert len(shown) == count + 1, f"{len(shown) - 1} of {count} models are listed"
        return interleave(
            rounds,
            list=lambda: timed(variables, "list"),
            ps=lambda: timed(variables, "ps"),
            version=lambda: timed(variables, "version"),
        )


def started_s(home: Path) -> float:
    """Seconds from starting a manager until it answers a request."""
    began_s = time.monotonic()
    with manager_process(home, REAL):
        return time.monotonic() - began_s


def timed(variables: dict[str, str], verb: str) -> float:
    """Seconds of one command."""
    began_s = time.monotonic()
    ft(variables, verb)
    return time.monotonic() - began_s


def ft(variables: dict[str, str], verb: str) -> subprocess.CompletedProcess[str]:
    """Run the command line; its output."""
    argv = [sys.executable, "-m", "ftman", verb]
    return subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)


def environment(home: Path, **more: str) -> dict[str, str]:
    """Ours, without settings that point elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FT_", "OLLAMA_"))}
    return kept | {"FT_HOME": str(home), "PYTHONPATH": str(ROOT)} | more


def told(count: int, lists: dict[str, list[float]], starts: dict[str, list[float]]) -> int:
    """Print the figures; 1 where one is over its limit."""
    middle = {name: statistics.median(times) for name, times in (lists | starts).items()}
    over_s = middle["list"] - middle["version"]
    print(f"{count} models; medians of {len(lists['list'])} rounds")
    print("   ".join(f"ft {verb} {middle[verb]:.3f} s" for verb in lists))
    print(f"ft list over start-up {over_s:.3f} s   limit {LIMIT_LIST_S} s")
    print(f"ft list over ft ps    {middle['list'] - middle['ps']:.3f} s")
    print(f"manager starts in {middle['full']:.3f} s   limit {LIMIT_START_S} s")
    print(f"       empty store {middle['empty']:.3f} s")
    measured = {"models": count, "over_start_s": over_s, "seconds": lists | starts}
    report("catalog", {"start_full_over_empty": middle["full"] / middle["empty"]}, measured)
    return int(over_s > LIMIT_LIST_S or middle["full"] > LIMIT_START_S)


if __name__ == "__main__":
    sys.exit(main())

"""A model larger than its process's memory group: it runs from disk, says so, same tokens."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftengine.device.locked_memory import lockable_bytes
from ftengine.device.torch_device import PAGE_BYTES
from ftengine.loader.ftw import FtwModel
from ftengine.loader.mapped import mappable_bytes
from ftengine.runtime.engine import Engine
from tests.fakes import tiny_models
from tests.fakes.tiny_models import Floats, TinySizes, hub_weights, sizes_of
from tests.ftengine.experts.memory_group import MemoryGroup, NoGroupError, memory_group
from tests.ftengine.parity.tiny_engines import greedy, load_engine, make_tiny, random_ids

ROOT = Path(__file__).parents[3]
LIMIT_BYTES = 480 << 20
"""torch needs 150 MB of its own, the engine keeps 256 MiB free beside what it holds."""
EXPERT_INTER = 1408
SLACK_BYTES = 32 << 20
PROBE = """
import os, sys
if sys.argv[2]:  # first of all: memory is charged to the group one is in when taking it
    open(sys.argv[2], "w").write(str(os.getpid()))
import json
from dataclasses import asdict
from pathlib import Path
from ftengine.errors import CapacityError
from tests.ftengine.experts.memory_group import own_usage
from tests.ftengine.experts.test_memory_group import tokens_of
from tests.ftengine.parity.tiny_engines import load_engine

def kept(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind + ":"))

libraries = kept("RssFile")
refused = ""
try:
    load_engine(Path(sys.argv[1]), tier="memory")
except CapacityError as error:
    refused = error.message
engine = load_engine(Path(sys.argv[1]))
tokens = tokens_of(engine)
print(json.dumps({
    "tokens": tokens, "notes": engine.info.notes, "libraries": libraries, "refused": refused,
    "peak_rss": kept("VmHWM"), "locked": kept("VmLck"), "usage": asdict(own_usage()),
}))
"""


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        with memory_group(LIMIT_BYTES) as made:
            yield made
    except NoGroupError as error:
        pytest.skip(str(error))


def rolled_weights(family: str, sizes: TinySizes, seed: int) -> dict[str, Floats]:
    """Every eighth expert is random, the others are its rows in another order: quick to make."""
    drawn = {}
    small = hub_weights(family, replace(sizes, num_experts=sizes.num_experts // 8), seed)
    for name, values in small.items():
        stem, experts, rest = name.partition(".experts.")
        if name.endswith(".gate.weight"):
            rng = np.random.default_rng(seed)
            drawn[name] = rng.standard_normal((sizes.num_experts, sizes.hidden), np.float32) / 8
        elif not experts:
            drawn[name] = values
        else:
            expert, _, matrix = rest.partition(".")
            for turn in range(8):
                number = 8 * int(expert) + turn
                drawn[f"{stem}.experts.{number}.{matrix}"] = np.roll(values, 17 * turn, axis=0)
    return drawn


def tokens_of(engine: Engine) -> list[tuple[int, ...]]:
    """Enough of them that nearly every expert is asked for, many more than once."""
    prompts = [random_ids(count, seed=count) for count in (17, 60)]
    return [item.token_ids for item in greedy(engine, prompts, 32)]


def run(ftw: Path, group: MemoryGroup) -> dict[str, Any]:
    """One engine in a process of its own inside the group."""
    done = subprocess.run(
        [*group.prefix, sys.executable, "-c", PROBE, str(ftw), group.procs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def forget_pages(folder: Path) -> None:
    """Out of the page cache: pages that somebody else read are not charged to the group."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An FTW whose experts alone are larger than the group; removed at once, it is half a GB."""
    monkeypatch.setattr(tiny_models, "hub_weights", rolled_weights)
    sizes = sizes_of("mixtral", hidden=256, num_experts=32, layers=4, expert_inter=EXPERT_INTER)
    source, ftw = make_tiny("mixtral", tmp_path, sizes=sizes)
    shutil.rmtree(source)
    yield ftw
    shutil.rmtree(ftw)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_pool_larger_than_the_memory_group_runs_from_disk(group: MemoryGroup, pool: Path) -> None:
    with FtwModel.open(pool) as model:
        pool_bytes = mappable_bytes(model)
    assert pool_bytes > LIMIT_BYTES + (32 << 20)
    free = load_engine(pool)
    assert not any("slower tier" in note for note in free.info.notes)
    assert free.info.weights_bytes > pool_bytes
    want = tokens_of(free)
    free.close()
    del free  # and its mappings, or the system would not forget what they show
    gc.collect()
    forget_pages(pool)
    found = run(pool, group)
    assert [tuple(tokens) for tokens in found["tokens"]] == want
    assert any("slower tier" in note and "on disk" in note for note in found["notes"])
    assert "GB are free" in found["refused"]
    usage = found["usage"]
    assert usage["limit_bytes"] == LIMIT_BYTES
    assert usage["kills"] == 0
    # the limit was reached: what was read before had to go for what was read next
    assert usage["refaults"] * PAGE_BYTES > pool_bytes - LIMIT_BYTES
    assert usage["peak_bytes"] > 0.95 * LIMIT_BYTES
    # libraries that other processes read first are charged to those
    assert found["peak_rss"] <= LIMIT_BYTES + found["libraries"] + SLACK_BYTES
    locking = any("read most often are locked" in note for note in found["notes"])
    assert (found["locked"] > 0) == locking
    assert found["locked"] <= (lockable_bytes() or LIMIT_BYTES)

"""Rows that are locked in memory: really, within the limit, and a refusal is no failure."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftengine.device import locked_memory
from ftengine.experts.hot import LockedRows
from ftengine.loader.mapped import TieredWeights
from ftengine.runtime.assemble import MemoryPlan, lock_room
from ftengine.runtime.engine import Engine
from tests.ftengine.parity.tiny_engines import greedy, random_ids

Engines = Callable[..., Engine]
Reads = Callable[[list[int]], None]
ROW = 4 * mmap.PAGESIZE
PROMPTS = [random_ids(count, seed=count) for count in (5, 17)]
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")


@pytest.fixture
def address() -> Iterator[int]:
    memory = mmap.mmap(-1, 16 * ROW)
    memory[:] = b"\1" * len(memory)
    place = (ctypes.c_char * len(memory)).from_buffer(memory)
    yield ctypes.addressof(place)
    del place
    memory.close()


def locked_bytes() -> int:
    found = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    assert found is not None
    return int(found.group(1)) * 1024


@linux
def test_hot_rows_are_locked_by_the_system(address: int) -> None:
    if (locked_memory.lockable_bytes() or ROW) < 3 * ROW:
        pytest.skip("RLIMIT_MEMLOCK allows too little")
    before = locked_bytes()
    locked = LockedRows(2 * ROW)
    reads = locked.add_bank(address, ROW)
    assert locked_bytes() == before
    for _ in range(200):
        reads([3, 5])
    assert locked.locked_bytes == 2 * ROW == locked_bytes() - before
    for _ in range(3000):
        reads([7])
    assert locked_bytes() - before == 2 * ROW
    locked_memory.unlock(address, 16 * ROW)
    assert locked_bytes() == before


@pytest.mark.parametrize(
    ("room", "limit", "text"),
    [
        (8 * ROW, None, r"read most often are locked in memory, up to"),
        (8 * ROW, ROW - 1, r"no experts are locked .* RLIMIT_MEMLOCK allows 0\.0 MB .*ulimit -l"),
        (0, None, r"no experts are locked .* 0\.0 MB of memory can be spared"),
        (-5, 0, r"no experts are locked .* can be spared"),
    ],
)
def test_budget_and_what_is_said_of_it(
    room: int, limit: int | None, text: str, address: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(locked_memory, "lock", lambda _, size: calls.append(size))
    monkeypatch.setattr(locked_memory, "unlock", lambda *_: None)
    locked = LockedRows(room, lambda: limit)
    assert locked.note == ""
    reads = locked.add_bank(address, ROW)
    assert re.search(text, locked.note)
    for number in range(300):
        reads([number % 16])
    assert bool(calls) == (limit is None and room > 0)
    assert locked.locked_bytes <= max(room, 0)


@pytest.mark.parametrize("allowed_calls", [0, 1, 2])
def test_refusal_is_told_once_and_harms_nothing(
    allowed_calls: int,
    address: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held: set[int] = set()
    calls = [0]

    def lock(place: int, _: int) -> None:
        calls[0] += 1
        if calls[0] > allowed_calls:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        held.add(place)

    monkeypatch.setattr(locked_memory, "lock", lock)
    monkeypatch.setattr(locked_memory, "unlock", lambda place, _: held.discard(place))
    with caplog.at_level(logging.WARNING):
        locked = LockedRows(8 * ROW, lambda: None)
        reads = locked.add_bank(address, ROW)
        for number in range(600):
            reads([number % 3])
    assert not held
    assert locked.locked_bytes == 0
    assert "the system refused (Cannot allocate memory)" in locked.note
    assert calls[0] == allowed_calls + 1
    assert len(caplog.records) == 1


def test_engine_whose_locks_are_refused_gives_the_same_tokens(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = [item.token_ids for item in greedy(engines(), PROMPTS, 24)]

    def refuse(*_: int) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(locked_memory, "lock", refuse)
    engine = engines(tier="disk")
    assert any("refused (Operation not permitted)" in note for note in engine.info.notes)
    assert [item.token_ids for item in greedy(engine, PROMPTS, 24)] == want


@linux
def test_engine_locks_what_it_reads_from_disk(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LockedRows] = []
    real = TieredWeights.__init__

    def noted(self: TieredWeights, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        made.append(self.locked)

    want = [item.token_ids for item in greedy(engines(), PROMPTS, 40)]
    monkeypatch.setattr(TieredWeights, "__init__", noted)
    engine = engines(tier="disk")
    assert [item.token_ids for item in greedy(engine, PROMPTS, 40)] == want
    if any("no experts are locked" in note for note in engine.info.notes):
        pytest.skip("this machine locks nothing")
    assert 0 < made[0].locked_bytes <= locked_bytes()


def test_room_for_locks_is_a_part_of_what_is_left() -> None:
    plan = MemoryPlan(4096, 256, 10 << 30, 1 << 30, 0, mappable_bytes=8 << 30, on_disk=True)
    assert plan.need_bytes == 3 << 30
    assert lock_room(plan, (3 << 30) + (256 << 20) + (4 << 20)) == 1 << 20
    assert lock_room(plan, 1 << 30) == 0
    assert lock_room(plan, None) == 0

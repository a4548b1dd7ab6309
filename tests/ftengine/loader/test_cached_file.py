"""Files in the page cache are used where they lie, and moved while they are being read."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from ftengine.errors import FormatError
from ftengine.loader import borrowed, cached_file
from ftengine.loader.borrowed import BorrowedBanks
from ftengine.loader.cached_file import CachedFile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems read their files")

SIZE = (9 << 20) + 4096
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(random.Random(1).randbytes(SIZE))
    return path


def found(path: Path) -> CachedFile:
    file = CachedFile.find(path, path.stat().st_size)
    if file is None:
        pytest.skip("this file system does not tell what is in memory")
    return file


def with_holes(path: Path, monkeypatch: pytest.MonkeyPatch, missing: int) -> CachedFile | None:
    """As if the last `missing` of its ten samples were not in memory."""
    there = [True] * (10 - missing) + [False] * missing
    monkeypatch.setattr(cached_file, "_is_cached", lambda *_: there.pop(0))
    return CachedFile.find(path, SIZE)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


def private_bytes(address: int) -> int:
    """Of the mapping that holds an address: its pages that are no file's."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(item, 16) for item in first.split("-"))
            inside = start <= address < end
        elif inside and first == "Anonymous:":
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{address:x} is not mapped")


def test_the_view_is_the_file(path: Path) -> None:
    file = found(path)
    assert file.view == path.read_bytes()
    assert file.span(12345, SIZE - 77) == path.read_bytes()[12345 : SIZE - 77]


def test_what_is_not_in_memory_is_not_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", not_there)
    assert CachedFile.find(path, SIZE) is None
    assert CachedFile.find(path, 0) is None


def test_a_file_with_some_holes_is_mapped_and_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_holes(path, monkeypatch, 6) is None
    file = with_holes(path, monkeypatch, 5)
    assert file is not None
    assert file.span(5 << 20, SIZE) == path.read_bytes()[5 << 20 :]


def test_a_file_cut_short_is_told_and_not_died_of(path: Path) -> None:
    file = found(path)
    os.truncate(path, 4 << 20)
    assert file.span(0, 4 << 20) == path.read_bytes()
    with pytest.raises(FormatError, match=r"weights ends early or cannot be read .*pull the model"):
        file.span(3 << 20, SIZE)


def test_moved_parts_are_own_memory_and_outlive_the_file(path: Path) -> None:
    file = found(path)
    whole = path.read_bytes()
    start, end = 3 * PAGE, SIZE - 5 * PAGE
    held = torch.frombuffer(file.view, dtype=torch.uint8, count=end - start, offset=start)
    assert not private_bytes(held.data_ptr())
    at = start
    while at < end:
        stop = file.cut(at, end, 2 << 20)
        assert at < stop <= end
        assert stop == end or (held.data_ptr() + stop - start) % (2 << 20) == 0
        file.move(at, stop)
        at = stop
    assert private_bytes(held.data_ptr()) > 0
    os.truncate(path, 0)
    del file
    assert held.numpy().tobytes() == whole[start:end]


def test_readers_see_the_same_bytes_while_parts_are_moved(path: Path) -> None:
    file = found(path)
    held = np.frombuffer(file.view, np.uint64)
    want, wrong, done = int(held.sum()), 0, threading.Event()

    def read() -> None:
        nonlocal wrong
        while not done.is_set():
            wrong += int(held.sum()) != want

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(3):
            for at in range(0, SIZE, 1 << 20):
                file.move(at, min(at + (1 << 20), SIZE))
    finally:
        done.set()
        reader.join()
    assert not wrong


def test_a_refused_move_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = found(path)
    os.truncate(path, 4 << 20)
    before = mappings()
    with pytest.raises(OSError, match="ends early"):
        file.move(3 << 20, 5 << 20)
    assert mappings() <= before + 1
    assert file.span(0, 4 << 20) == path.read_bytes()


@pytest.mark.parametrize("cleared", [False, True])
def test_a_move_that_the_system_refuses_leaves_the_file_in_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch, cleared: bool
) -> None:
    """Linux clears the target first: what it refuses after that has left nothing there."""
    file = found(path)
    held = torch.frombuffer(file.view, dtype=torch.uint8)
    start, end = 2 << 20, 4 << 20
    real = cached_file._LIBC.munmap

    def refuse(_old: int, _size: int, size: int, _flags: int, target: int) -> int | None:
        assert target == held.data_ptr() + start
        assert not cleared or real(target, size) == 0
        ctypes.set_errno(errno.ENOMEM)
        return cached_file._FAILED

    before = mappings()
    monkeypatch.setattr(cached_file._LIBC, "mremap", refuse)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        file.move(start, end)
    monkeypatch.undo()
    assert private_bytes(held.data_ptr() + start) == 0
    assert mappings() <= before + 1
    assert file.view == path.read_bytes()
    file.move(start, end)
    assert private_bytes(held.data_ptr() + start) == end - start
    assert file.view == path.read_bytes()


def test_a_move_without_room_for_the_copy_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int | None:
        ctypes.set_errno(errno.ENOMEM)
        return cached_file._FAILED

    file = found(path)
    before = mappings()
    monkeypatch.setattr(cached_file._LIBC, "mmap", refuse)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        file.move(2 << 20, 4 << 20)
    monkeypatch.undo()
    assert mappings() <= before + 1
    assert file.view == path.read_bytes()


def test_banks_are_moved_part_by_part_and_the_rest_forgotten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrowed, "PART_BYTES", 2 << 20)
    file = found(path)
    banks = BorrowedBanks()
    banks.add(file, 5 << 20, 4 << 20)
    banks.add(file, PAGE, 3 << 20)
    assert banks.total_bytes == banks.left_bytes == 7 << 20
    banks.forget_rest()
    parts = 0
    while banks.move_part():
        parts += 1
    assert parts >= 4
    assert banks.left_bytes == 0
    assert file.view == path.read_bytes()


def test_banks_that_cannot_be_moved_stay_where_they_are(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    file = found(path)
    monkeypatch.setattr(cached_file.CachedFile, "move", refuse)
    banks = BorrowedBanks()
    banks.add(file, 0, SIZE)
    with caplog.at_level(logging.WARNING):
        assert not banks.move_part()
    assert not banks.move_part()
    assert len(caplog.records) == 1
    assert file.view == path.read_bytes()

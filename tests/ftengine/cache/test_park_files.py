"""Files of parked conversations: what is damaged, torn, foreign or too much is dropped, said."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ftengine.cache import park_files
from ftengine.cache.park_files import Head, ParkFolder
from ftman import faults, files

PAGE_BYTES, STATE_BYTES = 64, 40
TOKENS = tuple(range(100, 140))


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    faults.arm("")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ParkFolder]:
    opened = ParkFolder(tmp_path / "parked", "model a")
    yield opened
    opened.close()


def head(identity: str = "model a") -> Head:
    return Head(identity, "salt", len(TOKENS), 1, 2, (30,), PAGE_BYTES, STATE_BYTES)


def rows() -> list[torch.Tensor]:
    sizes = (PAGE_BYTES, PAGE_BYTES, STATE_BYTES)
    return [torch.arange(size, dtype=torch.uint8) + at for at, size in enumerate(sizes)]


def write(folder: ParkFolder, rank: int = 7, identity: str = "model a") -> Path:
    assert folder.write(rank, head(identity), TOKENS, rows()) is not None
    return folder.path / f"{rank:016x}.park"


def again(folder: ParkFolder) -> ParkFolder:
    folder.close()
    return ParkFolder(folder.path, "model a")


def test_what_was_written_is_found_and_read_by_the_next_engine(folder: ParkFolder) -> None:
    path = write(folder)
    other = again(folder)
    [(rank, opened)] = other.scan()
    assert (rank, opened.tokens, opened.num_bytes) == (7, TOKENS, path.stat().st_size)
    kept = dataclasses.replace(opened.head, checks=(), tokens_check="")
    assert kept == head()
    read = other.read(7, [2, 0])
    assert read is not None
    assert all(torch.equal(mine, rows()[at]) for mine, at in zip(read, (2, 0), strict=True))
    assert path.stat().st_mode & 0o077 == 0
    other.close()


def flip(at: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (flip(0), "no file of parked"),
        (flip(20), "checksum of its head"),
        (flip(-170), "checksum of its tokens"),
        (lambda data: data[:-1], "bytes and not"),
        (lambda data: data[:5], "cut short"),
        (lambda data: data + b"x", "bytes and not"),
        (lambda data: b"", "cut short"),
    ],
)
def test_damaged_file_is_deleted_when_the_folder_is_opened_and_told_once(
    change: Callable[[bytes], bytes],
    reason: str,
    folder: ParkFolder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, good = write(folder), write(folder, 8)
    path.write_bytes(change(path.read_bytes()))
    other = again(folder)
    with caplog.at_level(logging.WARNING):
        assert [rank for rank, _ in other.scan()] == [8]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert reason in caplog.text
    assert not path.exists()
    assert good.exists()
    other.close()


def test_damaged_row_is_noticed_when_it_is_read(
    folder: ParkFolder, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(folder)
    path.write_bytes(flip(-1)(path.read_bytes()))
    other = again(folder)
    assert [rank for rank, _ in other.scan()] == [7]
    assert other.read(7, [0, 1]) is not None
    assert other.read(7, [0, 2]) is None
    assert "the checksum of row 2 is wrong" in caplog.text
    other.remove(7)
    assert not path.exists()
    other.close()


def test_file_that_vanished_is_of_no_use(folder: ParkFolder) -> None:
    write(folder).unlink()
    assert folder.read(7, [0]) is None
    folder.remove(7)


def test_file_of_another_model_is_deleted(
    folder: ParkFolder, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(folder, identity="model b")
    other = again(folder)
    assert list(other.scan()) == []
    assert "it is of another model" in caplog.text
    assert not path.exists()
    other.close()


def test_file_of_another_format_is_deleted(
    folder: ParkFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder)
    monkeypatch.setattr(park_files, "FORMAT", park_files.FORMAT + 1)
    other = again(folder)
    assert list(other.scan()) == []
    assert f"its format is {park_files.FORMAT - 1} and not {park_files.FORMAT}" in caplog.text
    other.close()


def test_full_disk_is_told_once_and_leaves_nothing_behind(
    folder: ParkFolder, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, 1)
    faults.arm("files.write=error:ENOSPC")
    assert folder.write(2, head(), TOKENS, rows()) is None
    assert folder.write(3, head(), TOKENS, rows()) is None
    faults.arm("")
    assert len(caplog.records) == 1
    assert "cannot go to" in caplog.text
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", f"{1:016x}.park"]
    write(folder, 2)


def test_disk_is_not_filled_to_the_brim(
    folder: ParkFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: park_files.RESERVE_BYTES + 10)
    assert folder.write(1, head(), TOKENS, rows()) is None
    assert "would be left free" in caplog.text


def test_what_a_killed_process_left_half_written_is_deleted(folder: ParkFolder) -> None:
    write(folder)
    (folder.path / ".0000000000000009.park.123.tmp").write_bytes(b"half")
    (folder.path / "notes.txt").write_bytes(b"not ours")
    other = again(folder)
    assert [rank for rank, _ in other.scan()] == [7]
    names = {path.name for path in other.path.iterdir()}
    assert names == {".lock", f"{7:016x}.park", "notes.txt"}
    other.close()


def test_folder_belongs_to_one_engine_at_a_time(folder: ParkFolder) -> None:
    with pytest.raises(files.LockedError):
        ParkFolder(folder.path, "model a")

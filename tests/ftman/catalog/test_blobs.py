"""Blobs are what their name says, or they are not there."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ftman import faults
from ftman.catalog.blobs import BlobStore
from ftman.errors import IntegrityError, NotFoundError, UsageError

HELLO = "sha256:" + hashlib.sha256(b"hello").hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


async def parts(*chunks: bytes, fail: bool = False) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if fail:
        raise ConnectionResetError


def test_written_bytes_are_read_back_under_their_digest(store: BlobStore) -> None:
    assert store.write(b"hello") == HELLO
    assert store.read(HELLO) == b"hello"
    assert store.has(HELLO.replace(":", "-"))
    with store.open(HELLO) as file:
        assert file.read() == b"hello"


def test_a_damaged_blob_is_not_read_and_is_replaced_by_a_new_write(store: BlobStore) -> None:
    store.write(b"hello")
    store.path(HELLO).write_bytes(b"jello")
    with pytest.raises(IntegrityError):
        store.read(HELLO)
    store.write(b"hello")
    assert store.read(HELLO) == b"hello"


@pytest.mark.parametrize(
    "digest", ["", "sha256:", "sha256:xyz", "md5:" + "0" * 64, "sha256:../../etc", HELLO + "0"]
)
def test_malformed_digests_are_refused(store: BlobStore, digest: str) -> None:
    with pytest.raises(UsageError, match="invalid digest format"):
        store.path(digest)


def test_a_missing_blob_is_not_found_without_a_path(store: BlobStore) -> None:
    with pytest.raises(NotFoundError) as caught:
        store.open(HELLO)
    assert str(store.folder) not in str(caught.value)


def test_an_upload_is_hashed_as_it_passes(store: BlobStore) -> None:
    assert asyncio.run(store.receive(HELLO, parts(b"he", b"", b"llo"))) == HELLO
    assert store.read(HELLO) == b"hello"


def test_a_wrong_upload_is_told_and_kept_under_its_own_digest(store: BlobStore) -> None:
    other = "sha256:" + hashlib.sha256(b"jello").hexdigest()
    with pytest.raises(UsageError) as caught:
        asyncio.run(store.receive(HELLO, parts(b"jello")))
    assert caught.value.message == f'digest mismatch, expected "{HELLO}", got "{other}"'
    assert not store.has(HELLO)
    assert store.has(other)


def test_a_broken_upload_leaves_nothing(store: BlobStore) -> None:
    with pytest.raises(ConnectionResetError):
        asyncio.run(store.receive(HELLO, parts(b"he", fail=True)))
    assert store.entries() == []


def test_a_full_disk_leaves_no_temporary_file(store: BlobStore) -> None:
    faults.arm("files.write=error:ENOSPC")
    with pytest.raises(OSError, match="space"):
        store.write(b"hello")
    assert store.entries() == []


def test_sweep_removes_what_is_not_kept_and_old_enough(store: BlobStore) -> None:
    store.write(b"hello")
    other = store.write(b"other")
    (store.folder / ".new-dead").write_bytes(b"123")
    assert store.sweep({HELLO}, older_than_wall_s=0) == 0
    assert store.sweep({HELLO}, older_than_wall_s=1e12) == 8
    assert store.has(HELLO)
    assert not store.has(other)


def test_only_temporaries_of_earlier_writers_are_dropped(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    kept = store.write(b"kept")
    for name, age_s in ((".new-old", 100), (".new-young", -100)):
        path = store.folder / name
        path.write_bytes(b"half")
        stamp = 1_000_000 - age_s
        os.utime(path, (stamp, stamp))
    assert store.sweep_temporaries(1_000_000) == 4
    assert sorted(p.name for p in store.entries()) == [".new-young", kept.replace(":", "-")]

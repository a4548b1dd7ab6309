"""Content-addressed files: written to a temporary name, made durable, checked, then renamed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import IO

from ftman import files
from ftman.catalog.manifest import normal_digest
from ftman.errors import IntegrityError, NotFoundError, UsageError

TEMPORARY_PREFIX = ".new-"
_BUFFER_BYTES = 1 << 20


class BlobStore:
    """The folder `blobs/`: files named sha256-<hex>, whose content has that digest."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where a blob lies or would lie.   Raises: UsageError on a malformed digest."""
        return self.folder / _name_of(digest)

    def has(self, digest: str) -> bool:
        """True if the blob is there."""
        return self.path(digest).is_file()

    def size(self, digest: str) -> int | None:
        """Bytes of a blob, None when it is missing."""
        path = f"{self.folder}{os.sep}{_name_of(digest)}"
        try:
            return os.stat(path).st_size  # noqa: PTH116 - as in verify.py
        except OSError:
            return None

    def open(self, digest: str) -> IO[bytes]:
        """Open for reading.   Raises: NotFoundError naming the digest."""
        try:
            return files.open_read(self.path(digest))
        except OSError:
            raise NotFoundError(f"blob {normal_digest(digest)} is not in the store") from None

    def read(self, digest: str, *, limit: int = 64 << 20) -> bytes:
        """A small blob, checked against its digest.   Raises: NotFoundError, IntegrityError."""
        with self.open(digest) as reader:
            data = reader.read(limit + 1)
        if len(data) > limit:
            raise IntegrityError(f"blob {digest} is larger than {limit} bytes")
        if _digest_of(data) != normal_digest(digest):
            raise IntegrityError(f"blob {digest} does not match its digest")
        return data

    def write(self, data: bytes) -> str:
        """Store bytes durably; returns their digest. A blob already there, intact, is reused."""
        digest = _digest_of(data)
        if self.size(digest) == len(data) and self._intact(digest):
            return digest
        with self._temporary() as temporary:
            with files.Writer(temporary, truncate=True) as writer:
                writer.write_at(0, data)
                writer.sync()
            if files.sha256_file(temporary) != digest.partition(":")[2]:
                raise IntegrityError("the disk returned other bytes than were written to a blob")
            files.rename(temporary, self.path(digest))
        return digest

    async def receive(self, expected_digest: str, chunks: AsyncIterator[bytes]) -> str:
        """Store an upload, hashed as it passes.

        Raises: UsageError when the bytes have another digest; they are kept under their own.
        """
        expected, hasher = normal_digest(expected_digest), hashlib.sha256()
        with self._temporary() as temporary:
            with files.Writer(temporary, truncate=True) as writer:
                offset = 0
                async for chunk in _regrouped(chunks):
                    await asyncio.to_thread(_append, writer, hasher, offset, chunk)
                    offset += len(chunk)
                await asyncio.to_thread(writer.sync)
            digest = "sha256:" + hasher.hexdigest()
            files.rename(temporary, self.path(digest))
        if digest != expected:
            raise UsageError(
                f'digest mismatch, expected "{expected_digest}", got "{digest}"',
                code="digest_mismatch",
            )
        return digest

    def remove(self, digest: str) -> int:
        """Remove a blob; returns the bytes that freed."""
        size = self.size(digest) or 0
        files.unlink(self.path(digest))
        return size

    def sweep(self, keep: Collection[str], older_than_wall_s: float) -> int:
        """Remove what is not in `keep` and was last written before the given time; returns bytes.

        Left-over temporary files and files that are no blobs go too.
        """
        freed = 0
        for path in self.orphans(keep):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if stat.st_mtime < older_than_wall_s:
                    files.unlink(path)
                    freed += stat.st_size
        return freed

    def orphans(self, keep: Collection[str]) -> list[Path]:
        """Files not in `keep`; left-over temporary ones and files that are no blobs too."""
        return [path for path in self.entries() if path.name.replace("-", ":", 1) not in keep]

    def sweep_temporaries(self, older_than_wall_s: float) -> int:
        """Remove what interrupted writes before the given time left behind; returns bytes."""
        freed = 0
        for path in self.entries():
            with contextlib.suppress(OSError):
                stat = path.stat()
                if path.name.startswith(TEMPORARY_PREFIX) and stat.st_mtime < older_than_wall_s:
                    files.unlink(path)
                    freed += stat.st_size
        return freed

    def entries(self) -> list[Path]:
        """Every file in the folder."""
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.is_file() or path.is_symlink()]

    def _intact(self, digest: str) -> bool:
        return files.sha256_file(self.path(digest)) == digest.partition(":")[2]

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        files.make_dir(self.folder)
        path = self.folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):
                files.unlink(path)
            raise


def _name_of(digest: str) -> str:
    return normal_digest(digest).replace(":", "-")


def _digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _append(writer: files.Writer, hasher: hashlib._Hash, offset: int, chunk: bytes) -> None:
    hasher.update(chunk)
    writer.write_at(offset, chunk)


async def _regrouped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        if len(buffer) >= _BUFFER_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)

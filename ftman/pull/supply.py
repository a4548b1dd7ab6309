"""Brings source files to the converter: local ones as they lie, remote ones fetched when needed.

Files up to a few GiB are fetched whole and verified before use; larger ones go through windows.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ftman import files
from ftman.convert.messages import ByteRange, Have
from ftman.errors import FtmanError
from ftman.pull.download import Counters, Downloader
from ftman.pull.heads import safe_name
from ftman.pull.source import SourceFile
from ftman.pull.windows import DoneRanges, WindowedFile

WINDOW_OVER_BYTES = 4 << 30
WINDOW_BYTES = 512 << 20


@dataclass(frozen=True)
class SupplySettings:
    """Units: bytes. A larger file than window_over_bytes never lies on disk whole."""

    window_over_bytes: int = WINDOW_OVER_BYTES
    window_bytes: int = WINDOW_BYTES
    keep_source: bool = False


class OneFile(Protocol):
    """One source file, wherever it comes from."""

    def provide(self, start: int, end: int) -> AsyncIterator[Have]:
        """Make bytes available on disk."""

    async def release(self, start: int, end: int) -> None:
        """Bytes that are not needed any more."""

    async def finish(self) -> str:
        """Check what could only be checked at the end; returns a note or ""."""

    async def prefetch(self) -> None:
        """Fetch ahead what will be needed first."""

    async def close(self) -> None:
        """End work in the background."""


class LocalFile:
    """A file of the user's: read in place, never deleted."""

    def __init__(self, file: SourceFile, path: Path):
        self._file = file
        self._path = path

    async def provide(self, start: int, end: int) -> AsyncIterator[Have]:
        yield Have(self._file.name, 0, self._file.bytes, self._path)

    async def release(self, start: int, end: int) -> None:
        return None

    async def finish(self) -> str:
        return ""

    async def prefetch(self) -> None:
        return None

    async def close(self) -> None:
        return None


class WholeFile:
    """A remote file fetched whole and verified, deleted when the converter is done with it."""

    def __init__(
        self, file: SourceFile, target: Path, downloader: Downloader, counters: Counters, keep: bool
    ):
        self._file = file
        self._target = target
        self._downloader = downloader
        self._counters = counters
        self._keep = keep
        self._done = DoneRanges()
        self._lock = asyncio.Lock()
        self._counted = False

    async def provide(self, start: int, end: int) -> AsyncIterator[Have]:
        await self._ensure()
        yield Have(self._file.name, 0, self._file.bytes, self._target)

    async def prefetch(self) -> None:
        if not self._done.covers(0, self._file.bytes):
            await self._ensure()

    async def _ensure(self) -> None:
        async with self._lock:
            if self._target.is_file() and self._target.stat().st_size == self._file.bytes:
                self._count_as_had()
                return
            self._counted = True
            await self._downloader.fetch(self._file, self._target, self._counters)

    async def release(self, start: int, end: int) -> None:
        self._done.add(start, end)
        if self._done.covers(0, self._file.bytes):
            self._count_as_had()
            if not self._keep:
                files.unlink(self._target)

    async def finish(self) -> str:
        return ""

    async def close(self) -> None:
        return None

    def _count_as_had(self) -> None:
        if not self._counted:
            self._counted = True
            self._counters.on_have(self._file.bytes)
            self._counters.on_hashed(self._file.bytes)


class SourceSupply:
    """All files of one source, in one job folder. Implements what a converter child asks for."""

    def __init__(
        self,
        source_files: Sequence[SourceFile],
        folder: Path,
        downloader: Downloader,
        counters: Counters,
        settings: SupplySettings,
    ):
        self._sizes = {file.name: file.bytes for file in source_files}
        self._order = [file.name for file in source_files]
        self._files = {
            file.name: _supplier(file, folder, downloader, counters, settings)
            for file in source_files
        }
        self._ahead: dict[str, asyncio.Task[None]] = {}

    async def provide(self, wanted: ByteRange) -> AsyncIterator[Have]:
        """See `ftman.convert.job.Supply`."""
        file, size = self._find(wanted.file)
        start, end = min(wanted.start, size), min(wanted.end, size)
        async for have in file.provide(start, end):
            yield have
        self._fetch_ahead(wanted.file)

    async def release(self, done: ByteRange) -> None:
        """See `ftman.convert.job.Supply`."""
        file, _ = self._find(done.file)
        await file.release(done.start, done.end)

    async def finish(self) -> list[str]:
        """Verify what was only hashed in passing; returns notes.   Raises: IntegrityError."""
        notes = [await file.finish() for file in self._files.values()]
        return [note for note in notes if note]

    async def close(self) -> None:
        """End all work in the background; what was fetched stays."""
        for task in self._ahead.values():
            task.cancel()
        await asyncio.gather(*self._ahead.values(), return_exceptions=True)
        for file in self._files.values():
            await file.close()

    def _find(self, name: str) -> tuple[OneFile, int]:
        if name not in self._files:
            raise FtmanError(f"the converter asks for {name!r}, which is no file of this model")
        return self._files[name], self._sizes[name]

    def _fetch_ahead(self, name: str) -> None:
        """Start on the file after `name`, so that network and converter work at the same time."""
        following = self._order[self._order.index(name) + 1 :][:1]
        for other in following:
            if other not in self._ahead:
                self._ahead[other] = asyncio.ensure_future(_quietly(self._files[other]))


async def _quietly(file: OneFile) -> None:
    # What goes wrong here goes wrong again, and is told, when the file is asked for.
    with contextlib.suppress(FtmanError):
        await file.prefetch()


def _supplier(
    file: SourceFile,
    folder: Path,
    downloader: Downloader,
    counters: Counters,
    settings: SupplySettings,
) -> OneFile:
    if file.path is not None:
        return LocalFile(file, file.path)
    target = folder / safe_name(file.name)
    if file.bytes > settings.window_over_bytes and not settings.keep_source:
        return WindowedFile(file, target, downloader, counters, settings.window_bytes)
    return WholeFile(file, target, downloader, counters, settings.keep_source)

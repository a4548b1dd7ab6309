"""Large remote files in windows: fetched in file order, hashed as they pass, dropped when done.

A window may be deleted once it is converted and hashed; the hash's own state is kept on disk, so a
restart goes on hashing where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from ftman import files
from ftman.convert.messages import Have
from ftman.errors import FtmanError, IntegrityError
from ftman.pull import disk
from ftman.pull.download import Counters, Downloader
from ftman.pull.hashing import SavableSha256
from ftman.pull.source import SourceFile
from ftman.pull.threads import in_thread


class DoneRanges:
    """A set of byte ranges that grows."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        if start >= end:
            return
        kept = []
        for one_start, one_end in self._ranges:
            if one_end < start or one_start > end:
                kept.append((one_start, one_end))
            else:
                start, end = min(start, one_start), max(end, one_end)
        self._ranges = sorted([*kept, (start, end)])

    def covers(self, start: int, end: int) -> bool:
        """True if all of [start, end) is in the set."""
        return start >= end or any(a <= start and end <= b for a, b in self._ranges)


class WindowedFile:
    """One remote file too large to lie on disk whole. Units: bytes."""

    def __init__(
        self,
        file: SourceFile,
        target: Path,
        downloader: Downloader,
        counters: Counters,
        window_bytes: int,
    ):
        self._file = file
        self._target = target
        self._downloader = downloader
        self._counters = counters
        self._size = window_bytes
        self._count = -(-file.bytes // window_bytes)
        self._done = DoneRanges()
        self._locks = [asyncio.Lock() for _ in range(self._count)]
        self._seen: set[int] = set()
        self._used: list[str] = []
        self._hash_lock = asyncio.Lock()
        self._hash = SavableSha256()
        self._state_path = target.with_name(target.name + ".hash.json")
        self._next = self._count if file.sha256 is None else self._restore()
        self._ahead: asyncio.Task[None] | None = None

    async def provide(self, start: int, end: int) -> AsyncIterator[Have]:
        """Yield the windows that overlap [start, end), one after another."""
        first, last = start // self._size, max(start, end - 1) // self._size
        for index in range(first, min(last + 1, self._count)):
            await self._fetch(index)
            window_start, window_end = self._span(index)
            yield Have(self._file.name, window_start, window_end, self._path(index))
        self._fetch_ahead(last + 1)

    async def prefetch(self) -> None:
        """Fetch the first window."""
        if not self._done.covers(*self._span(0)):
            await self._fetch(0)

    async def release(self, start: int, end: int) -> None:
        """Take note of converted bytes; drop windows that nobody needs any more."""
        self._done.add(start, end)
        for index in range(start // self._size, min(-(-end // self._size), self._count)):
            if self._done.covers(*self._span(index)):
                self._mark_had(index)
                self._drop(index)

    async def finish(self) -> str:
        """Hash the rest and compare.   Raises: IntegrityError when the file is another one."""
        await self.close()
        wanted = self._file.sha256
        if wanted is None:
            return ""
        while self._next < self._count:
            if self._lost(self._next):
                return (
                    f"{self._file.name}: its whole-file digest could not be checked, since the "
                    "download was interrupted and this Python cannot save a hash's state"
                )
            await self._fetch(self._next)
        got = self._hash.hexdigest()
        if got == wanted:
            files.unlink(self._state_path)
            return ""
        self._give_up(f"{self._file.name}: want sha256:{wanted}, got sha256:{got}")
        raise IntegrityError(
            f"digest mismatch, file must be downloaded again: {self._file.name}: "
            f"want sha256:{wanted}, got sha256:{got}",
            hint="Nothing of it was kept. The source serves other bytes than it names.",
            code="window_mismatch",
        )

    async def close(self) -> None:
        """End fetching ahead."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
            self._ahead = None

    def _span(self, index: int) -> tuple[int, int]:
        return index * self._size, min((index + 1) * self._size, self._file.bytes)

    def _path(self, index: int) -> Path:
        return self._target.with_name(f"{self._target.name}.w{index:06d}")

    def _is_here(self, index: int) -> bool:
        start, end = self._span(index)
        path = self._path(index)
        return path.is_file() and path.stat().st_size == end - start

    def _lost(self, index: int) -> bool:
        """True if a window went before it could be hashed."""
        return self._done.covers(*self._span(index)) and not self._is_here(index)

    async def _fetch(self, index: int) -> None:
        async with self._locks[index]:
            if self._is_here(index):
                self._mark_had(index)
            else:
                self._seen.add(index)
                counters, span = self._counters, self._span(index)
                used = await self._downloader.fetch_span(
                    self._file, span, self._path(index), counters
                )
                self._used += [url for url in used if url not in self._used]
        await self._advance_hash()

    def _fetch_ahead(self, index: int) -> None:
        busy = self._ahead is not None and not self._ahead.done()
        if busy or index >= self._count or self._done.covers(*self._span(index)):
            return

        async def quietly() -> None:
            # What goes wrong here goes wrong again, and is told, when the window is asked for.
            with contextlib.suppress(FtmanError):
                await self._fetch(index)

        self._ahead = asyncio.ensure_future(quietly())

    def _mark_had(self, index: int) -> None:
        if index not in self._seen:
            self._seen.add(index)
            start, end = self._span(index)
            self._counters.on_have(end - start)

    async def _advance_hash(self) -> None:
        async with self._hash_lock:
            while self._next < self._count and self._is_here(self._next):
                index = self._next
                try:
                    await in_thread(self._hash_window, index)
                except OSError as error:
                    folder, what = self._target.parent, f"hashing {self._file.name}"
                    raise disk.explain(error, folder, what, fetched=True) from error
                if self._done.covers(*self._span(index)):
                    self._drop(index)

    def _hash_window(self, index: int) -> None:
        with files.open_read(self._path(index)) as reader:
            while chunk := reader.read(files.CHUNK_BYTES):
                self._hash.update(chunk)
                self._counters.on_hashed(len(chunk))
        self._next = index + 1
        state = {"next": self._next, "size": self._size, "sha256": self._file.sha256}
        state["state"] = self._hash.save()
        files.write_atomic(self._state_path, json.dumps(state).encode())

    def _restore(self) -> int:
        try:
            state = json.loads(files.read_bytes(self._state_path, limit=1 << 16))
            fits = state["size"] == self._size and state["sha256"] == self._file.sha256
            if fits and self._hash.restore(str(state["state"])):
                return int(state["next"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0

    def _drop(self, index: int) -> None:
        # Where the hash cannot be saved, waiting for it would not help a restart.
        if index < self._next:
            files.unlink(self._path(index))

    def _give_up(self, reason: str) -> None:
        health = self._downloader.tools.health
        for mirror in self._file.mirrors:
            if mirror.url in self._used[:1]:
                health.drop_group(mirror, reason)
        files.unlink(self._state_path)
        for index in range(self._count):
            files.unlink(self._path(index))

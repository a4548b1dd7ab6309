"""Headers for a plan: only the asked ranges of remote files, those of the next files ahead."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from ftman import files
from ftman.convert.messages import ByteRange, Have
from ftman.errors import FtmanError
from ftman.pull.download import Counters, Downloader
from ftman.pull.heads import head_path, safe_name
from ftman.pull.source import SourceFile

HEADER_LIMIT_BYTES = 256 << 20
AHEAD_FILES = 8
_LENGTH_BYTES = 8


class HeaderSupply:
    """For a plan: fetches only the asked ranges of large files, and small files whole.

    A model of a hundred shards would else wait for a hundred round trips, one after another.
    """

    def __init__(
        self,
        source_files: Sequence[SourceFile],
        folder: Path,
        downloader: Downloader,
        counters: Counters,
    ):
        self._files = {file.name: file for file in source_files}
        self._shards = [f.name for f in source_files if f.name.endswith(".safetensors")]
        self._folder = folder
        self._downloader = downloader
        self._counters = counters
        self._ahead: dict[str, asyncio.Task[None]] = {}

    async def provide(self, wanted: ByteRange) -> AsyncIterator[Have]:
        """See `ftman.convert.job.Supply`."""
        file = self._files.get(wanted.file)
        if file is None:
            raise FtmanError(f"the converter asks for {wanted.file!r}, which is no file here")
        start, end = min(wanted.start, file.bytes), min(wanted.end, file.bytes)
        local = file.path or self._folder / safe_name(file.name)
        if local.is_file():
            yield Have(file.name, 0, file.bytes, local)
            return
        if end - start > HEADER_LIMIT_BYTES:
            raise FtmanError(f"{file.name} has a header of {end - start} bytes: refused")
        if start == 0:
            self._fetch_ahead(file.name, end)
        if file.name in self._ahead:
            # What went wrong ahead of time goes wrong again, and is told, below.
            await asyncio.wait({self._ahead[file.name]})
        yield Have(file.name, start, end, await self._fetched(file, start, end))

    async def release(self, done: ByteRange) -> None:
        """See `ftman.convert.job.Supply`."""
        return

    async def close(self) -> None:
        """End what is fetched ahead; what has arrived stays."""
        for task in self._ahead.values():
            task.cancel()
        await asyncio.gather(*self._ahead.values(), return_exceptions=True)

    async def _fetched(self, file: SourceFile, start: int, end: int) -> Path:
        target = head_path(self._folder, file.name, start, end)
        if not target.is_file():
            await self._downloader.fetch_span(file, (start, end), target, self._counters)
        return target

    def _fetch_ahead(self, name: str, count: int) -> None:
        """Start on the shards after `name`: their first `count` bytes, then their whole header."""
        if name not in self._shards:
            return
        at = self._shards.index(name)
        for other in self._shards[at + 1 : at + 1 + AHEAD_FILES]:
            file = self._files[other]
            if other not in self._ahead and file.path is None:
                self._ahead[other] = asyncio.ensure_future(self._header(file, count))

    async def _header(self, file: SourceFile, count: int) -> None:
        count = min(count, file.bytes)
        first = files.read_bytes(await self._fetched(file, 0, count), limit=count)
        if len(first) < _LENGTH_BYTES:
            return
        end = _LENGTH_BYTES + struct.unpack_from("<Q", first)[0]
        if count < end <= min(file.bytes, HEADER_LIMIT_BYTES):
            await self._fetched(file, _LENGTH_BYTES, end)

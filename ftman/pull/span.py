"""One contiguous range of one remote file: parallel segments, journal, mirrors, retries.

Nothing here knows what the bytes are; whether they are right is checked by download.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ftman import faults, files
from ftman.clock import Clock
from ftman.errors import NetworkError
from ftman.pull import disk
from ftman.pull.heads import pieces_from
from ftman.pull.journal import Journal, Segment
from ftman.pull.source import Mirror, SourceFile
from ftman.pull.threads import in_thread, run_all
from ftman.pull.transport import Body, MirrorError, Transport, network_error

log = logging.getLogger(__name__)

MAX_RESTARTS = 2
FRESH_REDIRECTS = 2


class NoRangesError(NetworkError):
    """Only whole files can be had from this source."""


class _RestartError(Exception):
    """What is on disk belongs to an older file: drop it and begin again."""


class _WholeError(Exception):
    """The only mirror left ignores ranges: take the file in one stream."""


@dataclass(frozen=True)
class DownloadSettings:
    """How hard the network is used. Units: bytes, seconds, bytes per second.

    sync_bytes bounds what a crash costs per segment; slow_bytes_per_s, over slow_after_s, is when
    another mirror is tried; tries counts attempts without a single byte.
    """

    parts: int = 8
    segment_bytes: int = 64 << 20
    sync_bytes: int = 8 << 20
    write_bytes: int = 1 << 20
    slow_bytes_per_s: float = 16e3
    slow_after_s: float = 15.0
    tries: int = 6
    backoff_s: float = 1.0
    max_backoff_s: float = 32.0
    reserve_bytes: int = 1 << 30


@dataclass
class Health:
    """Which mirrors are put aside for this session, and why."""

    urls: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def usable(self, mirrors: tuple[Mirror, ...]) -> list[Mirror]:
        """Mirrors not put aside, in their given order."""
        return [m for m in mirrors if m.url not in self.urls and m.group not in self.groups]

    def drop_url(self, mirror: Mirror, reason: str) -> None:
        """Ask this URL no more."""
        log.warning("mirror put aside: %s", reason)
        self.urls[mirror.url] = reason

    def drop_group(self, mirror: Mirror, reason: str) -> None:
        """Ask this place no more, whatever the file."""
        log.warning("mirror put aside: %s", reason)
        self.drop_url(mirror, reason)
        if mirror.group:
            self.groups[mirror.group] = reason


@dataclass(frozen=True)
class Tools:
    """What every download of a session shares."""

    transport: Transport
    settings: DownloadSettings
    clock: Clock
    health: Health


class SpanDownload:
    """Fetches [start, end) of `file` into `target`, going on from an earlier journal if it fits."""

    def __init__(
        self,
        tools: Tools,
        file: SourceFile,
        span: tuple[int, int],
        target: Path,
        on_bytes: Callable[[int], None],
    ):
        self._tools = tools
        self._file = file
        self._start, self._end = span
        self._target = target
        self._on_bytes = on_bytes
        self._journal_path = target.with_name(target.name + ".journal")
        self._lock = asyncio.Lock()
        self._preferred = 0
        self._whole = False
        self._journal = Journal(self._journal_path, [], {}, True)
        self._writer: files.Writer | None = None

    @property
    def used_mirrors(self) -> list[str]:
        """URLs that gave bytes, in this process or an earlier one."""
        return list(self._journal.etags)

    def remove(self) -> None:
        """Delete data and journal."""
        self._journal.remove()
        files.unlink(self._target)

    async def run(self, on_have: Callable[[int], None]) -> None:
        """Fetch what is missing; `on_have` is told what an earlier run already fetched.

        Raises: NetworkError, CannotFitError, FtmanError; on any exit what arrived is durable.
        """
        restarts = 0
        try:
            on_have(self._open())
            while True:
                try:
                    await self._run_once()
                    return
                except _RestartError as error:
                    restarts += 1
                    if restarts > MAX_RESTARTS:
                        raise NetworkError(
                            f"{self._file.name} keeps changing at its source: {error}",
                            hint="Run the same command again later.",
                        ) from None
                    self._restart()
                except _WholeError:
                    self._whole = True
                    self._restart()
        except OSError as error:
            what = f"fetching {self._file.name}"
            folder, missing = self._target.parent, self._missing()
            raise disk.explain(error, folder, what, missing, fetched=True) from error
        finally:
            self._close()

    def _open(self) -> int:
        cuts = [(self._start, self._end)]
        size = self._tools.settings.segment_bytes
        if self._end - self._start > size:
            edges = [*range(self._start, self._end, size), self._end]
            cuts = list(itertools.pairwise(edges))
        file = self._file
        anchor = file.digest or ",".join(mirror.url for mirror in file.mirrors)
        identity = f"{file.name}|{file.bytes}|{anchor}|{self._start}-{self._end}"
        self._journal = Journal.open(self._journal_path, self._target, identity, cuts)
        self._writer = files.Writer(self._target, truncate=self._journal.fresh)
        self._identity = identity
        if self._journal.fresh and file.digest:
            self._take_heads()
        return sum(segment.pos - segment.start for segment in self._journal.segments)

    def _take_heads(self) -> None:
        """Begin with what a plan fetched. Without a digest nobody would notice if it were stale."""
        assert self._writer is not None
        folder = self._target.parent
        for segment in self._journal.segments:
            for offset, data in pieces_from(folder, self._file.name, segment.start, segment.end):
                self._writer.write_at(offset - self._start, data)
                segment.pos = offset + len(data)
            if segment.missing:
                break
        self._sync_now()

    def _restart(self) -> None:
        lost = sum(segment.pos - segment.start for segment in self._journal.segments)
        self._on_bytes(-lost)
        self._close()
        self.remove()
        cuts = [(s.start, s.end) for s in self._journal.segments]
        if self._whole:
            cuts = [(self._start, self._end)]
        self._journal = Journal.open(self._journal_path, self._target, self._identity, cuts)
        self._writer = files.Writer(self._target, truncate=True)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._journal.close()

    def _missing(self) -> int:
        if not self._journal.segments:
            return self._end - self._start
        return sum(segment.missing for segment in self._journal.segments)

    async def _run_once(self) -> None:
        queue = [item for item in enumerate(self._journal.segments) if item[1].missing]
        queue.reverse()

        async def worker() -> None:
            while queue:
                index, segment = queue.pop()
                await self._fetch(index, segment)

        try:
            await run_all(worker() for _ in range(min(self._tools.settings.parts, len(queue))))
        finally:
            self._sync_now()

    async def _fetch(self, index: int, segment: Segment) -> None:
        tries, turn = 0, self._preferred
        while segment.missing:
            before = segment.pos
            usable = self._tools.health.usable(self._file.mirrors)
            if not usable:
                raise network_error(MirrorError("retry", "no mirror is left"), self._file.name)
            mirror = usable[turn % len(usable)]
            try:
                await self._stream(index, segment, mirror)
                self._preferred = turn
            except MirrorError as error:
                tries = 0 if segment.pos > before and not self._whole else tries + 1
                turn += await self._react(error, mirror, tries)
                if self._whole:
                    self._on_bytes(segment.start - segment.pos)
                    segment.pos = segment.durable = segment.start

    async def _react(self, error: MirrorError, mirror: Mirror, tries: int) -> int:
        """Decide what a trouble means; returns by how much to turn to another mirror."""
        health, settings = self._tools.health, self._tools.settings
        others = sum(1 for m in health.usable(self._file.mirrors) if m.url != mirror.url)
        log.info("%s: %s", self._file.name, error.message)
        if error.trouble == "expired" and tries <= FRESH_REDIRECTS:
            self._tools.transport.forget(mirror)
            return 0
        if error.trouble == "no_ranges":
            return self._without_ranges(error, mirror, others)
        if error.trouble == "changed" and others <= 0:
            raise _RestartError(error.message)
        if error.trouble != "retry":
            health.drop_url(mirror, error.message)
            if others <= 0:
                raise network_error(error, self._file.name)
            return 0
        if tries >= settings.tries:
            cause = MirrorError("retry", f"max retries exceeded: {error.message}")
            raise network_error(cause, self._file.name)
        rounds = tries - max(1, others + 1)
        if rounds >= 0 or others <= 0:
            wait = min(settings.backoff_s * 2 ** max(0, rounds), settings.max_backoff_s)
            await self._tools.clock.sleep(max(wait if tries else 0.0, error.after_s))
        return 1

    def _without_ranges(self, error: MirrorError, mirror: Mirror, others: int) -> int:
        if others > 0:
            self._tools.health.drop_url(mirror, error.message)
            return 0
        if (self._start, self._end) == (0, self._file.bytes):
            raise _WholeError
        raise NoRangesError(
            f"{self._file.name}: {error.message}",
            hint="Fetch the file another way and pull from its folder.",
        )

    async def _stream(self, index: int, segment: Segment, mirror: Mirror) -> None:
        file = self._file
        opened = self._tools.transport.open(
            mirror,
            segment.pos,
            None if self._whole else segment.end,
            want_total=file.bytes,
            etag=self._journal.etags.get(mirror.url, ""),
            html_ok=file.name.endswith((".html", ".htm")),
        )
        async with opened as body:
            if body.response.status_code == 200 and (segment.pos, segment.end) != (0, file.bytes):
                raise MirrorError("no_ranges", f"{mirror.url} ignores the Range header")
            known = self._journal.etags.get(mirror.url, "")
            if known and body.etag and known != body.etag:
                raise MirrorError("changed", f"{mirror.url} has another file than before")
            self._journal.note_mirror(mirror.url, body.etag)
            await self._receive(segment, body)
        if segment.missing:
            raise MirrorError("retry", f"the answer ended {segment.missing} bytes early")
        await self._sync()

    async def _receive(self, segment: Segment, body: Body) -> None:
        settings, buffer = self._tools.settings, bytearray()
        limit = min(settings.write_bytes, settings.sync_bytes)
        pace = _Pace(self._tools, len(self._tools.health.usable(self._file.mirrors)) > 1)
        try:
            async for chunk in body.response.aiter_raw():
                if len(buffer) + len(chunk) > segment.missing:
                    raise MirrorError(
                        "aside", f"more bytes than asked for come for {self._file.name}"
                    )
                buffer += chunk
                self._on_bytes(len(chunk))
                pace.check(len(chunk))
                if len(buffer) >= limit:
                    await self._write(segment, buffer)
            if buffer:
                await self._write(segment, buffer)
        finally:
            if buffer:
                # On the way out of an error: nothing that arrived is fetched twice.
                with contextlib.suppress(OSError):
                    self._write_now(segment, buffer)
            lost = len(buffer)
            self._on_bytes(-lost)

    async def _write(self, segment: Segment, buffer: bytearray) -> None:
        await in_thread(self._write_now, segment, buffer)
        if segment.pos - segment.durable >= self._tools.settings.sync_bytes and not self._whole:
            await self._sync()

    def _write_now(self, segment: Segment, buffer: bytearray) -> None:
        assert self._writer is not None
        data = bytes(buffer)
        self._writer.write_at(segment.pos - self._start, data)
        segment.pos += len(data)
        buffer.clear()

    async def _sync(self) -> None:
        async with self._lock:
            await in_thread(self._sync_now)
        faults.hit("pull.after_range")
        reserve = self._tools.settings.reserve_bytes
        what = f"fetching {self._file.name}"
        disk.check_reserve(self._target.parent, reserve, what, self._missing())

    def _sync_now(self) -> None:
        segments = self._journal.segments
        moved = {i: s.pos for i, s in enumerate(segments) if s.pos > s.durable}
        if self._whole:
            moved = {i: pos for i, pos in moved.items() if pos == segments[i].end}
        if moved and self._writer is not None:
            self._writer.sync()
            self._journal.record(moved)


class _Pace:
    """Notices a mirror that trickles, where there is another to turn to."""

    def __init__(self, tools: Tools, has_other: bool):
        self._clock = tools.clock
        self._settings = tools.settings
        self._has_other = has_other
        self._since = tools.clock.monotonic()
        self._count = 0

    def check(self, count: int) -> None:
        """Count bytes.   Raises: MirrorError when they come too slowly."""
        self._count += count
        age = self._clock.monotonic() - self._since
        if age < self._settings.slow_after_s:
            return
        if self._has_other and self._count < age * self._settings.slow_bytes_per_s:
            raise MirrorError("retry", f"only {self._count / age:.0f} bytes/s: another is tried")
        self._since, self._count = self._clock.monotonic(), 0

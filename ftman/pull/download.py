"""Whole remote files, verified: fetch, compare the digest, put a lying mirror aside, again."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

from ftman import faults, files
from ftman.errors import IntegrityError, NetworkError
from ftman.pull import disk
from ftman.pull.hashing import file_digest
from ftman.pull.heads import drop_heads
from ftman.pull.source import Mirror, SourceFile
from ftman.pull.span import SpanDownload, Tools
from ftman.pull.threads import in_thread
from ftman.pull.transport import MirrorError, Probe, network_error

log = logging.getLogger(__name__)

Count = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Counters:
    """Who is told about bytes: had before, arrived now (negative: dropped), hashed."""

    on_have: Count
    on_bytes: Count
    on_hashed: Count


class Downloader:
    """Fetches files and spans with one session's transport, settings and mirror health."""

    def __init__(self, tools: Tools):
        self.tools = tools

    async def probe(self, mirror: Mirror) -> Probe:
        """Size and ETag of a URL, retried as a download would be.   Raises: NetworkError."""
        settings, clock = self.tools.settings, self.tools.clock
        for attempt in range(settings.tries):
            try:
                return await self.tools.transport.probe(mirror)
            except MirrorError as error:
                if error.trouble != "retry" or attempt + 1 == settings.tries:
                    raise network_error(error, mirror.url) from None
                wait = min(settings.backoff_s * 2**attempt, settings.max_backoff_s)
                await clock.sleep(max(wait, error.after_s))
        raise AssertionError("unreachable")

    async def fetch_span(
        self, file: SourceFile, span: tuple[int, int], target: Path, counters: Counters
    ) -> list[str]:
        """Fetch bytes [start, end) into `target`, unverified; returns the URLs that gave them.

        An earlier try is resumed.

        Raises: NetworkError, CannotFitError.
        """
        self._require_mirrors(file)
        part = target.with_name(target.name + ".part")
        download = SpanDownload(self.tools, file, span, part, counters.on_bytes)
        await download.run(counters.on_have)
        await self._publish(file, part, target)
        return download.used_mirrors

    async def fetch(self, file: SourceFile, target: Path, counters: Counters) -> None:
        """Fetch a whole file and verify it; `target` appears only when it is right.

        Raises: NetworkError, CannotFitError, IntegrityError when every mirror gives other bytes.
        """
        self._require_mirrors(file)
        part = target.with_name(target.name + ".part")
        wanted, error = file, IntegrityError(f"{file.name} cannot be verified")
        while wanted.mirrors:
            download = SpanDownload(self.tools, wanted, (0, file.bytes), part, counters.on_bytes)
            try:
                await download.run(counters.on_have)
            except NetworkError as failure:
                if wanted is file:
                    raise
                self.tools.health.drop_url(wanted.mirrors[0], failure.message)
                wanted = self._next_suspect(file)
                continue
            faults.hit("pull.before_verify")
            got = await self._digest(part, file, counters)
            if got == file.digest or not file.digest:
                await self._publish(file, part, target)
                return
            counters.on_bytes(-file.bytes)
            counters.on_hashed(-file.bytes)
            error = IntegrityError(
                f"digest mismatch, file must be downloaded again: {file.name}: "
                f"want {file.digest}, got {got}",
                hint="The source serves other bytes than it names. Try again later or elsewhere.",
            )
            self._blame(file, download.used_mirrors, error.message)
            download.remove()
            drop_heads(target.parent, file.name)
            wanted = self._next_suspect(file)
        raise error

    def _blame(self, file: SourceFile, used: list[str], reason: str) -> None:
        """A sole giver of wrong bytes is put aside; of several, each is tried alone next."""
        if len(used) <= 1:
            for mirror in file.mirrors:
                if mirror.url in used:
                    self.tools.health.drop_group(mirror, reason)

    def _next_suspect(self, file: SourceFile) -> SourceFile:
        left = self.tools.health.usable(file.mirrors)
        return dataclasses.replace(file, mirrors=tuple(left[:1]))

    async def _digest(self, part: Path, file: SourceFile, counters: Counters) -> str:
        try:
            return await in_thread(file_digest, part, file.digest, counters.on_hashed)
        except OSError as error:
            raise disk.explain(
                error, part.parent, f"verifying {file.name}", fetched=True
            ) from error

    async def _publish(self, file: SourceFile, part: Path, target: Path) -> None:
        try:
            await in_thread(files.rename, part, target)
            files.unlink(part.with_name(part.name + ".journal"))
        except OSError as error:
            raise disk.explain(error, part.parent, f"fetching {file.name}", fetched=True) from error

    def _require_mirrors(self, file: SourceFile) -> None:
        if not self.tools.health.usable(file.mirrors):
            why = "; ".join(
                self.tools.health.urls.get(m.url) or self.tools.health.groups.get(m.group, "")
                for m in file.mirrors
            )
            raise NetworkError(
                f"{file.name}: no mirror is left: {why}",
                hint="Run the same command again: it goes on where it stopped.",
            )

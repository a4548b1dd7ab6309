"""Mending an installed model in place: damaged stretches made anew from their bytes at the source.

Only what the stretches came from is fetched, from any source of the model; every block is written
only when its own checksum is right again, so a lying or changed source can do no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftman import files
from ftman.catalog.model import Damage, Model
from ftman.convert.job import ConvertChild
from ftman.convert.messages import ByteRange, ConvertFile, ConvertSpec, RepairSpec
from ftman.errors import ConflictError, FtmanError, UnsupportedError
from ftman.pull import disk
from ftman.pull.header_supply import HeaderSupply
from ftman.pull.hub import parse_hub, resolve_hub
from ftman.pull.progress import Bar, Emit, Progress
from ftman.pull.pull import PullTools, silent_counters, unpacked
from ftman.pull.pypi import parse_pypi
from ftman.pull.resolve import Resolver, Wanted
from ftman.pull.source import ResolvedSource, SourceFile
from ftman.pull.threads import in_thread

log = logging.getLogger(__name__)

MAX_TURNS = 4
MAX_IN_PLACE_BYTES = 256 << 20
"""Beyond this a new conversion is no slower, and keeps no hundreds of small ranges open."""
_BLOB_PREFIX = "sha256:"


@dataclass(frozen=True)
class Mended:
    """left: damage that is still there. Units: bytes written."""

    left: tuple[Damage, ...]
    bytes: int


class Repair:
    """Mends one model at a time. endpoint: see Resolver."""

    def __init__(self, tools: PullTools, resolver: Resolver, endpoint: str | None, emit: Emit):
        self._tools = tools
        self._resolver = resolver
        self._endpoint = endpoint
        self._emit = emit

    async def run(self, model: Model, damage: Sequence[Damage]) -> Mended:
        """Mend what lies in the model's FTW folder; texts beside it are left for a new pull.

        Raises: UnsupportedError where the model has no source, FtmanError of every kind.
        """
        beside = tuple(item for item in damage if not _is_mendable(item))
        inside = [
            ByteRange(item.file, item.start, item.end) for item in damage if item not in beside
        ]
        if not inside:
            return Mended(beside, 0)
        size = sum(item.end - item.start for item in inside)
        if size > MAX_IN_PLACE_BYTES:
            raise UnsupportedError(f"{disk.amount(size)} are damaged: too much to mend in place")
        source = await self._source_of(model)
        folder = files.make_dir(self._tools.paths.partial / f"{model.ftw_id[:16]}-repair")
        try:
            with disk.JobLock(folder / "lock"):
                left, written = await self._in_turns(model, source, inside, folder)
        except files.LockedError:
            raise ConflictError(f"{model.name.short} is being repaired already") from None
        except OSError as error:
            what = f"repairing {model.name.short}"
            raise disk.explain(error, self._tools.paths.models, what) from error
        finally:
            await in_thread(files.remove_tree, folder)
        self._tools.catalog.absolve(model.ftw_id)
        reason = "its source no longer gives the bytes that were there"
        rest = [Damage(item.file, reason, item.start, item.end) for item in left]
        return Mended((*beside, *rest), written)

    async def _in_turns(
        self, model: Model, source: ResolvedSource, damage: list[ByteRange], folder: Path
    ) -> tuple[list[ByteRange], int]:
        """Each place in turn as long as something is left: one may serve other bytes."""
        source = await unpacked(self._tools, self._emit, source, folder)
        places = max((len(file.mirrors) for file in source.files), default=0) or 1
        left, written = list(damage), 0
        for turn in range(min(places, MAX_TURNS)):
            chosen = tuple(_only(file, turn) for file in source.files) if turn else source.files
            scratch = files.make_dir(folder / f"turn-{turn}")
            found, size = await self._once(model, replace(source, files=chosen), left, scratch)
            left, written = found, written + size
            if not left:
                break
        return left, written

    async def _once(
        self, model: Model, source: ResolvedSource, damage: list[ByteRange], folder: Path
    ) -> tuple[list[ByteRange], int]:
        downloader = self._tools.downloader
        supply = HeaderSupply(source.files, folder, downloader, silent_counters())
        listed = tuple(ConvertFile(f.name, _size(f), f.sha256) for f in source.files)
        name = model.name.short
        job = ConvertSpec(name, source.kind, listed, model.ftw_path, source.derive)
        bar = Bar(self._emit, self._tools.clock, Progress(f"repairing {name}", phase="repair"))
        try:
            child = ConvertChild(RepairSpec(job, tuple(damage)), supply, self._tools.converter)
            result = await child.repair(bar.set)
        finally:
            await supply.close()
        return list(result.left), result.bytes

    async def _source_of(self, model: Model) -> ResolvedSource:
        """Where this model's very bytes can be had: its entry in the index, else its origin."""
        facts = model.source
        try:
            resolved = await self._resolver.resolve(Wanted(model.name.full, True), ())
            if _same_files(resolved.source, facts):
                return _recorded(resolved.source, facts)
        except FtmanError as error:
            log.info("%s is not in the index: %s", model.name.short, error.message)
        source = await self._origin(str(facts.get("origin", "")), facts)
        if source is None or not _same_files(source, facts):
            origin = str(facts.get("origin") or "its source")
            raise UnsupportedError(
                f"{model.name.short} cannot be repaired: {origin} does not hold its files any more",
                hint="Remove it and get it anew: ft rm, then ft pull or ft create.",
                code="no_source",
            )
        return _recorded(source, facts)

    async def _origin(self, origin: str, facts: Mapping[str, Any]) -> ResolvedSource | None:
        revision = str(facts.get("revision", ""))
        if origin.startswith("hf://"):
            names = tuple(str(item.get("name")) for item in facts.get("files", ()))
            place = replace(parse_hub(origin), revision=revision or "main", patterns=names)
            return (await resolve_hub(place, self._endpoint))[0]
        if origin.startswith("pypi://"):
            wheel = parse_pypi(origin, revision)
            (item,) = facts["files"]
            file = SourceFile(str(item["name"]), int(item["bytes"]), str(item["digest"]))
            return ResolvedSource("gguf", (file,), origin, revision, wheel=wheel)
        if "://" not in origin:
            return None
        return (await self._resolver.resolve(Wanted(origin, True), ())).source


def _is_mendable(damage: Damage) -> bool:
    """Not a text blob, and not the index, without which nobody knows what was there."""
    known = damage.file.startswith(_BLOB_PREFIX) or damage.file in ("index.json", "manifest")
    return not known


def _same_files(source: ResolvedSource, facts: Mapping[str, Any]) -> bool:
    """The same names and sizes, and no digest that contradicts. Checksums have the last word."""
    known = {str(i["name"]): (i["bytes"], i.get("digest")) for i in facts.get("files", ())}
    found = {file.name: file for file in source.files}
    if known.keys() != found.keys() or source.kind != facts.get("kind"):
        return False
    for name, (size, digest) in known.items():
        file = found[name]
        if file.bytes != size or (digest and file.digest and digest != file.digest):
            return False
    return True


def _recorded(source: ResolvedSource, facts: Mapping[str, Any]) -> ResolvedSource:
    derive = facts.get("derive")
    return replace(source, derive=derive if isinstance(derive, dict) else None)


def _only(file: SourceFile, turn: int) -> SourceFile:
    """The file from one place alone."""
    if not file.mirrors:
        return file
    return replace(file, mirrors=(file.mirrors[turn % len(file.mirrors)],))


def _size(file: SourceFile) -> int:
    return file.bytes or (file.path.stat().st_size if file.path is not None else 0)

"""Does a registry still tell the truth? Each source is asked what it holds; nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ftman import files
from ftman.errors import FtmanError, UsageError
from ftman.pull import disk
from ftman.pull.download import Downloader
from ftman.pull.folder import resolve_local
from ftman.pull.https import resolve_url
from ftman.pull.hub import parse_hub, resolve_hub
from ftman.pull.index import ENTRY_LIMIT_BYTES, IndexEntry, read_entry_file
from ftman.pull.source import ResolvedSource
from ftman.pull.threads import in_thread


@dataclass(frozen=True)
class SourceState:
    """What one source of an entry holds. asked False: this kind cannot be asked. Units: bytes.

    differences: every way in which it is not what the entry says; empty = as it says.
    """

    source: str
    asked: bool = True
    bytes: int = 0
    num_files: int = 0
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class EntryState:
    """All sources of one build."""

    entry: IndexEntry
    sources: tuple[SourceState, ...]

    @property
    def seen_bytes(self) -> int:
        """Size of all files where every asked source agrees on it; else 0."""
        sizes = {state.bytes for state in self.sources if state.asked}
        return sizes.pop() if len(sizes) == 1 else 0

    @property
    def is_confirmed(self) -> bool:
        """True if at least one source was asked, and all that were are as the entry says."""
        asked = [state for state in self.sources if state.asked]
        return bool(asked) and not any(state.differences for state in asked)


async def check_entry_sources(
    entry: IndexEntry, downloader: Downloader, endpoint: str | None = None
) -> EntryState:
    """Ask every source of one build. A source that fails is a difference, not an error."""
    states = []
    for text in entry.sources:
        if text.startswith("pypi://"):
            states.append(SourceState(text, asked=False))
            continue
        try:
            found = await _ask(text, entry, downloader, endpoint)
        except FtmanError as error:
            reason = f"{error.message}. {error.hint}" if error.hint else error.message
            states.append(SourceState(text, differences=(reason,)))
            continue
        states.append(
            SourceState(
                text,
                bytes=found.bytes,
                num_files=len(found.files),
                differences=tuple(_differences(entry, found)),
            )
        )
    return EntryState(entry, tuple(states))


async def _ask(
    text: str, entry: IndexEntry, downloader: Downloader, endpoint: str | None
) -> ResolvedSource:
    if text.startswith("hf://"):
        return (await resolve_hub(parse_hub(text, entry.files), endpoint))[0]
    if text.startswith("file://"):
        return await in_thread(resolve_local, Path(unquote(urlsplit(text).path)))
    return await resolve_url(text, downloader, False)


def _differences(entry: IndexEntry, found: ResolvedSource) -> list[str]:
    told = []
    if entry.bytes and entry.bytes != found.bytes:
        sizes = f"{disk.amount(found.bytes)} ({found.bytes} bytes)"
        told.append(f"it holds {sizes}, the entry says {entry.bytes} bytes")
    there = {file.name: file for file in found.files}
    for name, digest in entry.sha256.items():
        file = there.get(name)
        if file is None:
            told.append(f"{name} is missing")
        elif file.sha256 not in (None, digest):
            told.append(f"{name} has sha256 {file.sha256}, the entry says {digest}")
    for name in entry.files:
        if not any(mark in name for mark in "*?[") and name.rpartition("/")[2] not in there:
            told.append(f"{name} is missing")
    return list(dict.fromkeys(told))


def entries_of(folder: Path, name: str) -> list[IndexEntry]:
    """The builds of one registry folder: all, those of a model, or one name:tag.

    Raises: UsageError naming what there is.
    """
    stem, _, tag = name.partition(":")
    paths = sorted((folder / "models").glob("*.toml"))
    chosen = [path for path in paths if not stem or path.stem.lower() == stem.lower()]
    found = [entry for path in chosen for entry in read_entry_file(path)]
    found = [entry for entry in found if not tag or entry.tag.lower() == tag.lower()]
    if not found:
        known = ", ".join(path.stem for path in paths) or "nothing"
        raise UsageError(f"{folder} has no entry {name or 'at all'}", hint=f"It has: {known}.")
    return found


def write_checked(folder: Path, states: Sequence[EntryState], day: str) -> list[str]:
    """Note the day, and sizes that were unknown, in the files of confirmed builds; names them.

    day: YYYY-MM-DD. Only those two values change; everything else in a file stays as it is.
    """
    written = []
    for state in states:
        if not state.is_confirmed:
            continue
        path = folder / "models" / f"{state.entry.name}.toml"
        text = files.read_bytes(path, limit=ENTRY_LIMIT_BYTES).decode("utf-8")
        changed = _in_table(text, state.entry.tag, "checked", f'"{day}"')
        if not state.entry.bytes and state.seen_bytes:
            changed = _in_table(changed, state.entry.tag, "bytes", str(state.seen_bytes))
        if changed != text:
            files.write_atomic(path, changed.encode())
            read_entry_file(path)
            written.append(state.entry.label)
    return written


def _in_table(text: str, tag: str, key: str, value: str) -> str:
    """`key = value` of [tag.<tag>] replaced; the table ends where the next one begins."""
    head = re.search(rf'^\[tag\.(?:"{re.escape(tag)}"|{re.escape(tag)})\]\s*$', text, re.M)
    if head is None:
        return text
    following = re.compile(r"^\[", re.M).search(text, head.end())
    end = following.start() if following else len(text)
    body = re.sub(
        rf"^({key}\s*=\s*)\S+", lambda m: m[1] + value, text[head.end() : end], count=1, flags=re.M
    )
    return text[: head.end()] + body + text[end:]

"""From what a user typed to a name and a source: index, hub, URL, file or folder. No bytes yet."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from ftman.catalog.model import ModelChanges
from ftman.convert.plan import require_family
from ftman.errors import FtmanError, NotFoundError, UnsupportedError, UsageError
from ftman.names import DEFAULT_HOST, ModelName, near_names, parse_name, printable
from ftman.pull.choose import choose_by_patterns
from ftman.pull.download import Downloader
from ftman.pull.folder import local_name, resolve_local
from ftman.pull.https import is_gguf_url, resolve_url, url_name
from ftman.pull.hub import HOSTS, HubPlace, parse_hub, resolve_hub
from ftman.pull.index import Index, IndexEntry
from ftman.pull.ollama_registry import registry_name, resolve_registry
from ftman.pull.ollama_store import SCHEME as STORE_SCHEME
from ftman.pull.ollama_store import resolve_store
from ftman.pull.pypi import parse_pypi
from ftman.pull.source import LocalSource, ResolvedSource, SourceFile
from ftman.pull.threads import in_thread

log = logging.getLogger(__name__)
_PLACES = "Today: names of the index (ft search), hf.co/org/repo, URLs, files, folders."


@dataclass(frozen=True)
class Wanted:
    """What a pull asks for."""

    text: str
    insecure: bool = False
    local: LocalSource | None = None


@dataclass(frozen=True)
class Resolved:
    """A name to install under, and the source that fills it. texts: what its publisher wrote."""

    name: ModelName
    source: ResolvedSource
    entry: IndexEntry | None = None
    texts: ModelChanges | None = None
    notes: tuple[str, ...] = ()


class Resolver:
    """Decides where a name comes from. endpoint None = the hub's own, or HF_ENDPOINT.

    home: where the key lies that registries are shown.
    """

    def __init__(
        self,
        index: Index,
        downloader: Downloader,
        endpoint: str | None = None,
        home: Path = Path(),
    ):
        self._home = home
        self._index = index
        self._downloader = downloader
        self._endpoint = endpoint

    def key(self, wanted: Wanted) -> str:
        """Equal for requests that mean the same model, before anything is asked.

        Raises: UsageError on a malformed name.
        """
        _check_address(wanted.text)
        if local_path(wanted.text) is not None or "://" in wanted.text:
            return wanted.text
        name = parse_name(wanted.text)
        entry = self._index.find(name)
        if entry is not None:
            name = name.with_tag(entry.tag)
        return "/".join(name.key)

    async def resolve(self, wanted: Wanted, built: Sequence[str]) -> Resolved:
        """Find the source.   Raises: UsageError, NotFoundError, UnsupportedError, NetworkError.

        built: families the engine has, so that others are refused before any byte; empty = unknown.
        """
        text = wanted.text.strip()
        scheme = text.partition("://")[0] if "://" in text else ""
        if scheme == "modelscope":
            raise UnsupportedError(
                f"{scheme}:// sources come in a later version",
                hint=_PLACES,
            )
        if scheme == STORE_SCHEME:
            stored = await resolve_store(text)
            return Resolved(stored.name, stored.source, texts=stored.texts, notes=stored.notes)
        if scheme == "ollama":
            return await self._registry(registry_name(text), wanted.insecure)
        path = local_path(text)
        if path is not None:
            return await self._local(path)
        if scheme == "hf":
            return await self._hub(parse_hub(text))
        if is_gguf_url(text) and urlsplit(text).hostname not in HOSTS:
            source = await resolve_url(text, self._downloader, wanted.insecure)
            return Resolved(url_name(text), source)
        return await self._named(parse_name(_without_hub_page(text)), wanted, built)

    async def _named(self, name: ModelName, wanted: Wanted, built: Sequence[str]) -> Resolved:
        if name.host.lower() in HOSTS:
            return await self._hub_name(name)
        if wanted.local is not None:
            return await self._from_local(name, wanted.local)
        if name.host != DEFAULT_HOST:
            return await self._registry(name, wanted.insecure)
        entry = self._index.find(name)
        if entry is None:
            raise self._unknown(name)
        require_family(entry.family, built, entry.label)
        return Resolved(_entry_name(name, entry), await self._entry_source(entry), entry)

    async def _registry(self, name: ModelName, insecure: bool) -> Resolved:
        found = await resolve_registry(name, self._home, insecure)
        return Resolved(found.name, found.source, texts=found.texts, notes=found.notes)

    async def _from_local(self, name: ModelName, local: LocalSource) -> Resolved:
        source = await in_thread(resolve_local, local.path)
        entry = self._index.find(name)
        if entry is None:
            return Resolved(name, source)
        if source.wheel is not None and source.wheel.wheel_sha256 == entry.wheel_sha256:
            wanted = await self._entry_source(entry)
            source = replace(wanted, wheel_path=source.wheel_path)
        else:
            source = replace(source, derive=entry.derive)
        return Resolved(_entry_name(name, entry), source, entry)

    async def _local(self, path: Path) -> Resolved:
        source = await in_thread(resolve_local, path)
        if source.wheel is not None:
            for entry in self._index.all():
                if entry.wheel_sha256 == source.wheel.wheel_sha256 and entry.derive is None:
                    name = _entry_name(parse_name(entry.name), entry)
                    known = await self._entry_source(entry)
                    return Resolved(name, replace(known, wheel_path=source.wheel_path), entry)
        return Resolved(local_name(path), source)

    async def _hub(self, place: HubPlace) -> Resolved:
        source, tag = await resolve_hub(place, self._endpoint)
        owner, _, repo = place.repo.partition("/")
        return Resolved(parse_name(f"hf.co/{owner}/{repo}:{tag}"), source)

    async def _hub_name(self, name: ModelName) -> Resolved:
        quant = "" if name.asks_latest else name.tag
        place = HubPlace(f"{name.namespace}/{name.model}", quant=quant)
        source, tag = await resolve_hub(place, self._endpoint)
        return Resolved(name.with_tag(tag), source)

    async def _entry_source(self, entry: IndexEntry) -> ResolvedSource:
        """The first source that can be reached; others that hold the same bytes become mirrors."""
        found: ResolvedSource | None = None
        trouble: FtmanError | None = None
        for text in entry.sources:
            try:
                source = await self._one_source(text, entry)
            except FtmanError as error:
                log.warning("%s: source %s is left out: %s", entry.label, text, error.message)
                trouble = trouble or error
                continue
            found = source if found is None else _with_mirrors(found, source)
        if found is None:
            raise trouble or NotFoundError(f"{entry.label} has no source")
        return replace(found, derive=entry.derive)

    async def _one_source(self, text: str, entry: IndexEntry) -> ResolvedSource:
        if text.startswith("pypi://"):
            wheel = parse_pypi(text, entry.wheel_sha256, entry.wheel_bytes)
            name = PurePosixPath(wheel.member).name
            digest = f"sha256:{entry.sha256[name]}" if name in entry.sha256 else ""
            file = SourceFile(name, entry.bytes, digest)
            return ResolvedSource("gguf", (file,), text, wheel.wheel_sha256, wheel=wheel)
        if text.startswith("hf://"):
            source, _ = await resolve_hub(parse_hub(text, entry.files), self._endpoint)
        elif text.startswith("file://"):
            path = Path(unquote(urlsplit(text).path))
            source = await in_thread(resolve_local, path)
            if source.kind == "safetensors" and entry.files:
                names = [file.name for file in source.files]
                kept = choose_by_patterns(names, entry.files)
                chosen = tuple(file for file in source.files if file.name in kept)
                source = replace(source, files=chosen)
        else:
            name = PurePosixPath(urlsplit(text).path).name
            known = entry.sha256.get(name, "")
            source = await resolve_url(text, self._downloader, False, known)
        return replace(source, files=_pinned(source.files, entry))

    def _unknown(self, name: ModelName) -> NotFoundError:
        tags = self._index.knows(name)
        hint = f"{name.stem} has the tags: {', '.join(tags)}." if tags else ""
        close = near_names(name.stem, (entry.name for entry in self._index.all()))
        if name.scheme not in ("http", "https"):
            hint = f"ft does not fetch from {name.scheme}://. {_PLACES}"
        elif close and not tags:
            hint = f"Did you mean {' or '.join(close)}? All that are known: ft search"
        return NotFoundError(
            "pull model manifest: file does not exist",
            hint=hint or f"No model {name.stem!r} in the index; see: ft search",
            code="model_unknown",
        )


def _check_address(text: str) -> None:
    try:
        urlsplit(text)
    except ValueError as error:
        raise UsageError(f"{printable(text)} is no address: {error}") from None


def local_path(text: str) -> Path | None:
    """The path that a text names, if it is written like one; whether it exists is not asked."""
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return Path(text).expanduser()
    return None


def _without_hub_page(text: str) -> str:
    """`https://huggingface.co/org/repo` means the repository."""
    parts = urlsplit(text) if "://" in text else None
    if parts is not None and parts.hostname in HOSTS:
        return f"{parts.hostname}{parts.path.rstrip('/')}"
    return text


def _entry_name(name: ModelName, entry: IndexEntry) -> ModelName:
    return replace(name, model=entry.name).with_tag(entry.tag)


def _pinned(found: tuple[SourceFile, ...], entry: IndexEntry) -> tuple[SourceFile, ...]:
    """Digests of the index win over what a source says of itself."""
    return tuple(
        dataclasses.replace(file, digest=f"sha256:{entry.sha256[file.name]}")
        if file.name in entry.sha256
        else file
        for file in found
    )


def _with_mirrors(first: ResolvedSource, other: ResolvedSource) -> ResolvedSource:
    """Add `other`'s URLs to files that have the same name, size and digest."""
    known = {(file.name, file.bytes, file.digest): file for file in other.files if file.digest}
    merged = tuple(
        dataclasses.replace(
            file,
            mirrors=(
                *file.mirrors,
                *getattr(known.get((file.name, file.bytes, file.digest)), "mirrors", ()),
            ),
        )
        for file in first.files
    )
    return replace(first, files=merged)

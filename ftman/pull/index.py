"""The index of known models: packaged registry files, then the user's folders and URLs.

Facts only; where a name that is not in here comes from is decided in resolve.py.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftman import files
from ftman.errors import UsageError
from ftman.names import DEFAULT_HOST, DEFAULT_NAMESPACE, ModelName
from ftman.pull.data import data_folder
from ftman.pull.remote_index import fetch_remote
from ftman.pull.schema import check_entry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger(__name__)

ENTRY_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class IndexEntry:
    """One build (tag) of one known model. Units: bytes (0 = unknown), parameters."""

    name: str
    tag: str
    family: str
    license: str
    summary: str
    default_tag: str
    tags: tuple[str, ...]
    format: str
    total_params: int
    active_params: int
    bytes: int
    checked: str
    sources: tuple[str, ...]
    files: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    wheel_sha256: str = ""
    wheel_bytes: int = 0
    derive: Mapping[str, Any] | None = None
    needs: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """name:tag."""
        return f"{self.name}:{self.tag}"

    @property
    def is_default(self) -> bool:
        """True for the build that the bare name means."""
        return self.tag == self.default_tag


class Index:
    """All known models. Names and tags are found without regard to letter case."""

    def __init__(self, entries: Iterable[IndexEntry]):
        self._models: dict[str, dict[str, IndexEntry]] = {}
        for entry in entries:
            self._models.setdefault(entry.name.lower(), {})[entry.tag.lower()] = entry

    @classmethod
    def load(cls, places: Sequence[str], cache: Path) -> Index:
        """Read the packaged registry, then each folder or URL; a later place wins by name.

        Raises: UsageError naming the file and key that is wrong. An unreachable URL is served from
        the cache, or left out with a log line.
        """
        models: dict[str, list[IndexEntry]] = {}
        for entries in read_folder(data_folder("registry")):
            models[entries[0].name.lower()] = entries
        for place in places:
            folder = fetch_remote(place, cache) if "://" in place else Path(place).expanduser()
            if folder is None:
                continue
            if not folder.is_dir():
                raise UsageError(
                    f"registry {place} is not a folder", hint="Change FT_REGISTRY or create it."
                )
            for entries in read_folder(folder):
                models[entries[0].name.lower()] = entries
        return cls(entry for entries in models.values() for entry in entries)

    def find(self, name: ModelName) -> IndexEntry | None:
        """The entry a name means, its tag resolved; None if the index does not know it."""
        tags = self._tags(name)
        if tags is None:
            return None
        if name.asks_latest and "latest" not in tags:
            return tags[next(iter(tags.values())).default_tag.lower()]
        return tags.get(name.tag.lower())

    def default_tag(self, name: ModelName) -> str | None:
        """The tag meant by the bare name; None for a model the index does not know."""
        tags = self._tags(name)
        return next(iter(tags.values())).default_tag if tags else None

    def knows(self, name: ModelName) -> tuple[str, ...]:
        """The tags of a known model; empty for an unknown one."""
        tags = self._tags(name)
        return next(iter(tags.values())).tags if tags else ()

    def search(self, text: str) -> list[IndexEntry]:
        """Entries that hold every word in name, family or summary; names that begin so first."""
        words = text.lower().split()
        found = [
            entry
            for entry in self.all()
            if all(
                word in f"{entry.label} {entry.family} {entry.summary}".lower() for word in words
            )
        ]
        first = text.strip().lower()
        return sorted(found, key=lambda entry: not (first and entry.name.startswith(first)))

    def all(self) -> list[IndexEntry]:
        """Every build, by name, the default build of a model first."""
        entries = [entry for tags in self._models.values() for entry in tags.values()]
        return sorted(entries, key=lambda entry: (entry.name, not entry.is_default, entry.tag))

    def _tags(self, name: ModelName) -> dict[str, IndexEntry] | None:
        own = name.host == DEFAULT_HOST and name.namespace.lower() == DEFAULT_NAMESPACE
        return self._models.get(name.model.lower()) if own else None


def read_folder(folder: Path) -> list[list[IndexEntry]]:
    """Read models/*.toml of one registry.   Raises: UsageError naming the file and key."""
    return [read_entry_file(path) for path in sorted((folder / "models").glob("*.toml"))]


def read_entry_file(path: Path) -> list[IndexEntry]:
    """Read one model; one entry per tag.   Raises: UsageError naming the file and key."""
    try:
        value = tomllib.loads(files.read_bytes(path, limit=ENTRY_LIMIT_BYTES).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", code="bad_registry") from None
    check_entry(value, str(path))
    if value["name"] != path.stem:
        raise _bad(path, "name", f"must be {path.stem!r}, like the file")
    if value["default_tag"] not in value["tag"]:
        raise _bad(path, "default_tag", f"{value['default_tag']!r} is none of the tags")
    common = {key: value[key] for key in ("name", "family", "license", "summary", "default_tag")}
    return [
        _entry(path, tag, build, common, tuple(value["tag"])) for tag, build in value["tag"].items()
    ]


def _entry(
    path: Path, tag: str, build: Mapping[str, Any], common: Mapping[str, str], tags: tuple[str, ...]
) -> IndexEntry:
    from_wheel = any(source.startswith("pypi://") for source in build["sources"])
    if from_wheel and "wheel_sha256" not in build:
        raise _bad(path, f"tag.{tag}.wheel_sha256", "is missing (pypi:// needs it)")
    fields: dict[str, Any] = {**common, **build}
    fields["total_params"] = int(build["total_params"])
    fields["active_params"] = int(build["active_params"])
    fields["sources"] = tuple(build["sources"])
    fields["files"] = tuple(build.get("files", ()))
    return IndexEntry(tag=tag, tags=tags, **fields)


def _bad(path: Path, key: str, reason: str) -> UsageError:
    return UsageError(f"{path}: {key} {reason}", code="bad_registry")

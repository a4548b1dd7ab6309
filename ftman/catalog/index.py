"""The manifest files on disk: which names are installed, and what each manifest says.

Reads are cached by file signature, so a listing of thousands of models stays cheap. Writes keep
the order that makes a crash harmless: everything else first, the manifest last.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftman import faults, files
from ftman.catalog.manifest import MANIFEST_LIMIT_BYTES, Manifest
from ftman.errors import FtmanError, IntegrityError
from ftman.names import ModelName, is_valid_name, printable

log = logging.getLogger(__name__)

Signature = tuple[int, int, int]


@dataclass(frozen=True)
class Installed:
    """One manifest file, read. digest: hex SHA-256 of its bytes."""

    name: ModelName
    manifest: Manifest
    digest: str
    modified_wall_s: float
    signature: Signature


class ManifestFolder:
    """The folder `manifests/<host>/<namespace>/<model>/<tag>`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._cache: dict[str, Installed] = {}

    def path(self, name: ModelName) -> Path:
        """The manifest file of a name."""
        return self.folder.joinpath(*name.path_parts)

    def _text(self, name: ModelName) -> str:
        """The same as text: a listing of thousands has no time for Paths."""
        return "/".join((str(self.folder), *name.path_parts))

    def names(self) -> list[ModelName]:
        """Every installed name, sorted; files that are no names are passed over."""
        return sorted(self._walk(), key=lambda name: name.path_parts)

    def read(self, name: ModelName) -> Installed:
        """Read one manifest.   Raises: FileNotFoundError, IntegrityError (unreadable)."""
        path = self._text(name)
        try:
            stat = os.stat(path)  # noqa: PTH116 - as in _listing
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = self._cache.get(path)
            if known is not None and known.signature == signature and known.name == name:
                return known
            data = files.read_bytes(Path(path), limit=MANIFEST_LIMIT_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(name.short) from None
        except OSError as error:
            raise IntegrityError(
                f"the manifest of {name.short} cannot be read: {error.strerror}"
            ) from None
        try:
            manifest = Manifest.from_json(data)
        except IntegrityError as error:
            raise IntegrityError(f"model '{name.short}' is damaged: {error.message}") from None
        digest = hashlib.sha256(data).hexdigest()
        found = Installed(name, manifest, digest, stat.st_mtime, signature)
        self._cache[path] = found
        return found

    def read_all(self) -> tuple[list[Installed], int]:
        """All readable manifests, and the number of unreadable ones (each logged)."""
        found, bad = [], 0
        for name in self.names():
            try:
                found.append(self.read(name))
            except FileNotFoundError:
                continue
            except FtmanError as error:
                log.warning("skipping a manifest: %s", error.message)
                bad += 1
        return found, bad

    def adopt(self, name: ModelName) -> ModelName:
        """The same name in the spelling of what is installed, part by part, whatever its case."""
        folder, parts = self.folder, []
        for part in name.path_parts:
            parts.append(_spelling(folder, part))
            folder = folder / parts[-1]
        host, namespace, model, tag = parts
        return ModelName(model, tag, namespace, host, name.scheme, name.tagged)

    def tags(self, name: ModelName) -> list[str]:
        """Installed tags of a model, sorted. `name` must be in the installed spelling."""
        folder = self.path(name).parent
        return sorted(tag for tag in _listing(folder) if is_valid_name(f"x:{tag}"))

    def write(self, name: ModelName, data: bytes) -> None:
        """Make a manifest visible, durably; the last step of every commit."""
        path = self.path(name)
        try:
            files.make_dir(path.parent)
            faults.hit("catalog.before_commit")
            files.write_atomic(path, data)
        except BaseException:
            files.remove_empty_parents(path.parent, self.folder)
            raise
        faults.hit("catalog.after_commit")

    def remove(self, name: ModelName) -> None:
        """Remove a manifest durably; the first step of every deletion."""
        path = self.path(name)
        files.unlink(path)
        files.sync_dir(path.parent)
        self._cache.pop(self._text(name), None)
        faults.hit("delete.after_manifest")
        files.remove_empty_parents(path.parent, self.folder)

    def sweep_temporaries(self, older_than_wall_s: float) -> int:
        """Remove what interrupted writes left behind; returns bytes."""
        freed = 0
        for path in files.walk(self.folder):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if path.name.endswith(".tmp") and stat.st_mtime < older_than_wall_s:
                    files.unlink(path)
                    freed += stat.st_size
        return freed

    def _walk(self) -> Iterator[ModelName]:
        root = str(self.folder)
        for host in _listing(root):
            for namespace in _listing(f"{root}/{host}"):
                for model in _listing(f"{root}/{host}/{namespace}"):
                    for tag in _listing(f"{root}/{host}/{namespace}/{model}"):
                        if is_valid_name(f"{host}/{namespace}/{model}:{tag}"):
                            yield ModelName(model, tag, namespace, host, tagged=True)
                        elif not tag.endswith(".tmp"):
                            log.warning("not a manifest name: %s", printable(tag))


def _listing(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names only, ten thousand times
    except OSError:
        return []


def _spelling(folder: Path, part: str) -> str:
    if (folder / part).exists():
        return part
    lowered = part.lower()
    twins = sorted(entry for entry in _listing(folder) if entry.lower() == lowered)
    return twins[0] if twins else part

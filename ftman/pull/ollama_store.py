"""Models of an Ollama on this machine: its manifests and blobs, read where they lie.

Nothing is ever written below that folder: the converter reads the weights in place, and what it
makes lies in our own store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from ftman import files
from ftman.catalog.index import ManifestFolder
from ftman.catalog.manifest import Manifest, normal_digest
from ftman.errors import FtmanError, IntegrityError, NotFoundError
from ftman.names import ModelName, parse_name
from ftman.pull.ollama_registry import Published, left_out, texts_of, weights_of
from ftman.pull.source import ResolvedSource, SourceFile

SCHEME = "ollama-store"
TEXT_LIMIT_BYTES = 16 << 20
_SYSTEM_PLACES = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models")


@dataclass(frozen=True)
class StoredModel:
    """One model of such a store. problem: "" or why it cannot be taken over. Units: bytes."""

    name: ModelName
    bytes: int
    problem: str = ""


def find_store(environ: Mapping[str, str], home: Path) -> Path:
    """Where Ollama keeps its models on this machine.   Raises: NotFoundError."""
    named = environ.get("OLLAMA_MODELS", "").strip()
    places = [Path(named).expanduser()] if named else [home / ".ollama" / "models"]
    places += [Path(text) for text in _SYSTEM_PLACES if not named]
    for place in places:
        if (place / "manifests").is_dir():
            return place.absolute()
    raise NotFoundError(
        f"there is no store of Ollama at {', '.join(str(place) for place in places)}",
        hint="Say where it is: ft import --ollama --from FOLDER",
    )


def store_models(folder: Path) -> list[StoredModel]:
    """What is in a store, by name."""
    manifests = ManifestFolder(folder / "manifests")
    found = []
    for name in manifests.names():
        try:
            manifest = manifests.read(name).manifest
            weights = weights_of(manifest, name)
            size = _blob(folder, weights.digest).stat().st_size
            found.append(StoredModel(name, size))
        except OSError:
            found.append(StoredModel(name, 0, "its weights are not there, or cannot be read"))
        except FtmanError as error:
            found.append(StoredModel(name, 0, error.message))
    return found


def place_of(folder: Path, name: ModelName) -> str:
    """How a model of a store is written for a pull."""
    return f"{SCHEME}://{quote(str(folder))}?model={quote(name.full, safe='')}"


async def resolve_store(text: str) -> Published:
    """Such a place as a source.   Raises: NotFoundError, UnsupportedError, IntegrityError."""
    parts = urlsplit(text)
    folder = Path(unquote(parts.path))
    name = parse_name(parse_qs(parts.query).get("model", [""])[0])
    try:
        manifest = ManifestFolder(folder / "manifests").read(name).manifest
    except FileNotFoundError:
        raise NotFoundError(
            f"{folder} has no model {name.short}", hint="What it has: ft import --ollama"
        ) from None
    weights = weights_of(manifest, name)
    path = _blob(folder, weights.digest)
    if not path.is_file() or path.stat().st_size != weights.size:
        raise IntegrityError(
            f"the weights of {name.short} in {folder} are missing or not {weights.size} bytes",
            hint=f"Mend it there: ollama pull {name.short}",
        )
    texts = await texts_of(_Blobs(folder), manifest)
    file = SourceFile(f"{name.model}.gguf", weights.size, path=path)
    source = ResolvedSource("gguf", (file,), f"{SCHEME}://{folder}", _revision(manifest))
    return Published(name, source, texts, left_out(manifest))


class _Blobs:
    """The small blobs of a store."""

    def __init__(self, folder: Path):
        self._folder = folder

    async def text(self, digest: str, size: int) -> bytes:
        """One blob, checked.   Raises: IntegrityError."""
        try:
            data = files.read_bytes(_blob(self._folder, digest), limit=TEXT_LIMIT_BYTES)
        except OSError as error:
            raise IntegrityError(f"blob {digest[:19]} cannot be read: {error.strerror}") from None
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != normal_digest(digest):
            raise IntegrityError(f"blob {digest[:19]} does not match its digest")
        return data


def _blob(folder: Path, digest: str) -> Path:
    return folder / "blobs" / normal_digest(digest).replace(":", "-")


def _revision(manifest: Manifest) -> str:
    return f"sha256:{hashlib.sha256(manifest.to_json()).hexdigest()}"

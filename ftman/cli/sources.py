"""FROM lines of a Modelfile: which files they mean, and how those reach the manager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ftman import files
from ftman.cli.client import ManagerClient
from ftman.cli.progress import ProgressView
from ftman.cli.session import Session
from ftman.errors import UsageError

CHUNK_BYTES = 1 << 20
# The first group that matches anything is the model; what lies beside it comes along.
_WEIGHTS = (
    ("model*.safetensors", "*/model*.safetensors"),
    ("consolidated*.safetensors",),
    ("pytorch_model*.bin",),
    ("consolidated*.pth",),
    ("*.gguf",),
    ("*.bin",),
)
_MODEL_SUFFIXES = (".gguf", ".safetensors", ".bin")
_GGUF = b"GGUF"
_ADAPTER_CONFIG = "adapter_config.json"
_BESIDE = ("*.json", "*/*.json", "chat_template.jinja", "tokenizer.model")


@dataclass(frozen=True)
class Sources:
    """What FROM lines add up to: an installed model's name, or files by their relative name."""

    model: str
    files: dict[str, Path]


def resolve_sources(values: Iterable[str], folder: Path) -> Sources:
    """Paths that exist are files; anything else is a model.   Raises: UsageError."""
    model, found = "", {}
    for value in values:
        path = _existing(value, folder)
        if path is not None:
            found.update(_files_of(path))
        elif _looks_like_path(value):
            raise UsageError(f"FROM {value}: no such file or folder in {folder}")
        elif model and model != value:
            raise UsageError(f"FROM names two models: {model} and {value}")
        else:
            model = value
    if model and found:
        raise UsageError(
            f"FROM names a model ({model}) and files; only one of the two can be built upon",
            hint="An adapter has a line of its own: ADAPTER. Projectors are not built yet.",
        )
    return Sources(model, found)


def adapter_files(value: str, folder: Path) -> dict[str, Path]:
    """The files of an ADAPTER line: a GGUF file, or a PEFT folder.   Raises: UsageError."""
    path = _existing(value, folder)
    if path is None:
        raise UsageError(f"ADAPTER {value}: no such file or folder in {folder}")
    if path.is_file():
        beside = path.with_name(_ADAPTER_CONFIG)
        pair = path.suffix == ".safetensors" and beside.is_file()
        return {path.name: path} | ({beside.name: beside} if pair else {})
    weights = sorted((*path.glob("*.safetensors"), *path.glob("*.gguf")))
    config = path / _ADAPTER_CONFIG
    found = [*weights[:2], *([config] if config.is_file() else [])]
    if len(weights) != 1:
        raise UsageError(f"ADAPTER {value}: the folder holds {len(weights)} adapter files, not one")
    return {_relative(item, path): item for item in found}


def upload(manager: ManagerClient, session: Session, found: dict[str, Path]) -> dict[str, str]:
    """Send files the manager does not have; returns relative name -> digest."""
    view = ProgressView(session.out)
    digests = {}
    try:
        for name, path in found.items():
            size = path.stat().st_size
            digest = "sha256:" + _hashed(view, name, path, size)
            if not manager.exists(f"/api/blobs/{digest}"):
                chunks = _told(view, f"copying {name}", path, size)
                manager.upload(f"/api/blobs/{digest}", chunks, size)
            digests[name] = digest
    finally:
        view.close()
    return digests


def _files_of(path: Path) -> dict[str, Path]:
    if path.is_file():
        if path.suffix not in _MODEL_SUFFIXES and _head(path) != _GGUF:
            raise UsageError(
                f"{path} is no model file", hint="It needs a *.gguf, or a folder of *.safetensors."
            )
        return {path.name: path}
    for group in _WEIGHTS:
        weights = [item for pattern in group for item in sorted(path.glob(pattern))]
        if weights:
            beside = [item for pattern in _BESIDE for item in sorted(path.glob(pattern))]
            picked = [item for item in (*weights, *beside) if item.is_file()]
            return {_relative(item, path): item for item in picked}
    raise UsageError(
        f"no model files in {path}", hint="It needs *.safetensors with config.json, or a *.gguf."
    )


def _head(path: Path) -> bytes:
    try:
        with files.open_read(path) as reader:
            return reader.read(len(_GGUF))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _relative(item: Path, root: Path) -> str:
    name = PurePosixPath(item.relative_to(root)).as_posix()
    if not item.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"insecure path: {name}", hint="It links to a place outside its folder.")
    return name


def _existing(value: str, folder: Path) -> Path | None:
    try:
        path = folder / Path(value).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _looks_like_path(value: str) -> bool:
    return value.startswith(("/", "./", "../", "~", ".\\")) or value.endswith(_MODEL_SUFFIXES)


def _hashed(view: ProgressView, name: str, path: Path, size: int) -> str:
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        view.feed({"status": f"hashing {name}", "total": size, "completed": done})

    return files.sha256_file(path, told)


def _told(view: ProgressView, status: str, path: Path, size: int) -> Iterator[bytes]:
    done = 0
    with files.open_read(path) as reader:
        while chunk := reader.read(CHUNK_BYTES):
            done += len(chunk)
            view.feed({"status": status, "total": size, "completed": done})
            yield chunk

"""Models on this machine: a GGUF file, a folder with safetensors or a GGUF, a wheel."""

from __future__ import annotations

import re
from pathlib import Path

from ftman import files
from ftman.errors import IntegrityError, NotFoundError, UsageError
from ftman.names import ModelName, parse_name, printable
from ftman.pull.choose import (
    POOLING_FILE,
    SAFETENSORS_PATTERNS,
    choose_by_patterns,
    flat_name,
    split_siblings,
)
from ftman.pull.source import ResolvedSource, SourceFile, WheelMember
from ftman.pull.wheel import gguf_members


def resolve_local(path: Path) -> ResolvedSource:
    """What lies at `path`.   Raises: NotFoundError, UsageError, IntegrityError naming the file."""
    path = path.expanduser().absolute()
    if path.is_file():
        return _resolve_file(path)
    if not path.is_dir():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise NotFoundError(f"{path} {what}", hint="Name a folder, a .gguf file or a .whl file.")
    names = sorted(item.name for item in path.iterdir() if item.is_file())
    if any(name.endswith(".safetensors") for name in names):
        names += [POOLING_FILE] * (path / POOLING_FILE).is_file()
        chosen = choose_by_patterns(names, SAFETENSORS_PATTERNS)
        if "config.json" not in chosen:
            raise UsageError(f"{path} has safetensors files but no config.json")
        named = {flat_name(name): _inside(path, name) for name in chosen}
        return _sourced("safetensors", named, f"file://{path}")
    return _resolve_file(_only_one(path, names))


def local_name(path: Path) -> ModelName:
    """A model name made from a path: the file's stem or the folder's name."""
    stem = path.stem if path.suffix.lower() in (".gguf", ".whl") else path.name
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.").replace("..", "-")
    return parse_name((text or "model")[:80].strip("-."))


def files_as_source(named: dict[str, Path], origin: str) -> ResolvedSource:
    """Given files as a source: all of a GGUF, or a safetensors checkpoint.   Raises: UsageError."""
    if not named:
        raise UsageError("no files provided to convert")
    ggufs = [name for name in named if name.lower().endswith(".gguf")]
    if not ggufs and len(named) == 1 and _magic(next(iter(named.values()))) == b"GGUF":
        ggufs = list(named)
    chosen = ggufs or sorted(named)
    kind = "gguf" if ggufs else "safetensors"
    if not ggufs and not any(name.endswith(".safetensors") for name in named):
        raise UsageError("supplied file was not in GGUF format")
    return _sourced(kind, {Path(name).name: named[name] for name in sorted(chosen)}, origin)


def _resolve_file(path: Path) -> ResolvedSource:
    suffix = path.suffix.lower()
    if suffix == ".whl":
        return _resolve_wheel(path)
    if suffix != ".gguf" and _magic(path) != b"GGUF":
        raise UsageError(
            f"{path} is neither a GGUF file nor a wheel",
            hint="For safetensors name the folder that holds config.json.",
        )
    if _magic(path) != b"GGUF":
        raise IntegrityError(f"{path} does not begin like a GGUF file")
    parts = [path.with_name(name) for name in split_siblings(path.name)]
    for part in parts:
        if not part.is_file():
            raise NotFoundError(f"{part} is missing: a split GGUF needs all of its parts")
    return _local("gguf", parts, path)


def _resolve_wheel(path: Path) -> ResolvedSource:
    members = gguf_members(path)
    if len(members) != 1:
        listed = ", ".join(name for name, _ in members) or "none"
        raise UsageError(f"{path} must hold one GGUF file; it holds: {listed}")
    member, size = members[0]
    digest = files.sha256_file(path)
    wheel = WheelMember(path.name.partition("-")[0], "local", member, digest)
    file = SourceFile(member.rpartition("/")[2], size)
    return ResolvedSource("gguf", (file,), f"file://{path}", digest, wheel=wheel, wheel_path=path)


def _only_one(folder: Path, names: list[str]) -> Path:
    for suffix in (".gguf", ".whl"):
        found = [name for name in names if name.lower().endswith(suffix)]
        sets = {tuple(split_siblings(name)) for name in found}
        if len(sets) > 1:
            raise UsageError(
                f"{folder} holds several {suffix} files: {printable(', '.join(found))}",
                hint="Name one of them.",
            )
        if found:
            return _inside(folder, found[0])
    raise UsageError(f"no Modelfile or safetensors files found in {folder}")


def _inside(folder: Path, name: str) -> Path:
    """`folder/name`, followed only where a link stays in the folder or its hub cache.

    The hub's cache keeps snapshots as links to ../../blobs of the same repository.
    """
    path, root = folder / name, folder.resolve()
    target = path.resolve()
    cache = root.parent.parent / "blobs" if root.parent.name == "snapshots" else root
    if target.parent not in (root / Path(name).parent, cache):
        raise UsageError(f"insecure path: {path} leads out of its folder to {target}")
    return path


def _local(kind: str, paths: list[Path], origin: Path) -> ResolvedSource:
    return _sourced(kind, {path.name: path for path in paths}, f"file://{origin}")


def _sourced(kind: str, named: dict[str, Path], origin: str) -> ResolvedSource:
    """Local files are told apart by time and size: hashing them would cost a second read."""
    found = tuple(SourceFile(name, path.stat().st_size, path=path) for name, path in named.items())
    newest = max(path.stat().st_mtime_ns for path in named.values())
    return ResolvedSource(kind, found, origin, f"mtime:{newest}")


def _magic(path: Path) -> bytes:
    try:
        with files.open_read(path) as reader:
            return reader.read(4)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None

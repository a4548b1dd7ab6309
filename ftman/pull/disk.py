"""Disk space: asked for before the first byte, watched while running, explained when it ends."""

from __future__ import annotations

import errno
from pathlib import Path

from ftman import files
from ftman.errors import CannotFitError, FtmanError

# EFBIG is what a file size limit of the account looks like.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FETCHED = "What was fetched is kept. "
_AGAIN = "Free some space, then run the same command again."


class JobLock(files.Lock):
    """A lock that is not left held, by an object nobody has, when its file cannot be written."""

    def __init__(self, path: Path):
        try:
            super().__init__(path)
        except OSError:
            writer: files.Writer | None = getattr(self, "_writer", None)
            if writer is not None:
                writer.close()
            raise


def amount(count: float) -> str:
    """Bytes as a person reads them (decimal units)."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def require_space(folder: Path, need: int, reserve: int, what: str, *, hint: str = "") -> None:
    """Refuse work that cannot end well.   Raises: CannotFitError with need and have, in bytes.

    hint: for folders outside the store.
    """
    have = files.free_bytes(folder)
    if need + reserve <= have:
        return
    kept_free = f" and {amount(reserve)} kept free" if reserve else ""
    raise CannotFitError(
        f"{what} needs {amount(need)} of disk{kept_free}; {folder} has {amount(have)}",
        hint=hint
        or "Free some space (ft rm, ft gc), or set FT_MODELS to a folder on a larger disk.",
        code="disk_full",
    )


def check_reserve(folder: Path, reserve: int, what: str, missing: int) -> None:
    """Stop a running fetch before the disk is full.   Raises: CannotFitError with need and have."""
    have = files.free_bytes(folder)
    if have >= reserve:
        return
    raise CannotFitError(
        f"{what} stopped: {amount(missing)} are still to come, but {folder} has {amount(have)} "
        f"and {amount(reserve)} must stay free",
        hint=f"{_FETCHED}{_AGAIN}",
        code="disk_full",
    )


def explain(
    error: OSError, folder: Path, what: str, missing: int = 0, *, fetched: bool = False
) -> FtmanError:
    """The user's form of an I/O error.

    missing: bytes that are still to come, 0 = not known. fetched: what came over the network stays.
    """
    if error.errno in _FULL:
        rest = f"{amount(missing)} are still to come, " if missing else ""
        return CannotFitError(
            f"{what} stopped: the disk is full ({error.strerror}); {rest}"
            f"{folder} has {amount(files.free_bytes(folder))}",
            hint=f"{_FETCHED if fetched else ''}{_AGAIN}",
            code="disk_full",
        )
    return FtmanError(
        f"{what} stopped: {error.strerror or error} ({error.filename or folder})",
        hint="Check that the folder can be written, then run the same command again.",
        code="store_io",
    )

"""Errors of the manager: one tree; each carries a stable code, an HTTP status and a next step.

FtmanError
├── UsageError        400  the request or command is wrong as written
├── UnauthorizedError 401  no API key, or a wrong one
├── ForbiddenError    403  the API key has not the right
├── NotFoundError     404  no such model, tag, blob or job
├── ConflictError     409  another owner, another running job
├── CannotFitError    507  disk, RAM or context is too small; numbers in the text
├── NetworkError      502  a source cannot be reached or answers nonsense
├── IntegrityError    502  bytes do not match their digest
├── UnsupportedError  400  known, but not built; says what is
├── BusyError         503  queue full or loading; retry later
└── EngineDiedError   500  an engine process ended; retryable
"""

from __future__ import annotations

import errno

_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_DISK_ERRORS = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES),
        *(errno.EPERM, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTDIR),
    )
)


class FtmanError(Exception):
    """Base of everything the manager raises on purpose.

    message: what happened and why, naming the thing and the limit. hint: what to do next.
    """

    code = "internal"
    status = 500
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", code: str = "", status: int = 0):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.code
        self.status = status or self.status


class UsageError(FtmanError):
    """The request or command is wrong as written."""

    code = "invalid_request"
    status = 400
    exit_code = 2


class UnauthorizedError(FtmanError):
    """No API key, or a wrong one."""

    code = "invalid_api_key"
    status = 401


class ForbiddenError(FtmanError):
    """The API key is known, but has not the right for this."""

    code = "forbidden"
    status = 403


class NotFoundError(FtmanError):
    """No such model, tag, blob or job."""

    code = "not_found"
    status = 404
    exit_code = 5


class ConflictError(FtmanError):
    """Something else owns the thing: another manager, another running job."""

    code = "conflict"
    status = 409


class CannotFitError(FtmanError):
    """Disk, RAM or context is too small. The message holds need and have."""

    code = "cannot_fit"
    status = 507
    exit_code = 3


class NetworkError(FtmanError):
    """A source cannot be reached, or what it answers cannot be used."""

    code = "network"
    status = 502
    exit_code = 4


class IntegrityError(FtmanError):
    """Bytes do not match their digest, or an installed model is damaged."""

    code = "integrity"
    status = 502


class UnsupportedError(FtmanError):
    """Known, but not built yet; the message says what is."""

    code = "unsupported"
    status = 400


class BusyError(FtmanError):
    """The queue is full or a model is still loading."""

    code = "busy"
    status = 503
    retry_after_s = 5


class EngineDiedError(FtmanError):
    """An engine process ended or broke its protocol; the next request starts a new one."""

    code = "engine_died"
    status = 500


def failure_of(error: Exception) -> FtmanError | None:
    """What a refusal by the system means to people; None: a fault of ours."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # pathlib's, of a ~
        return UsageError(
            "a path begins with ~ where no home folder is known: there is no such user, or HOME "
            "is not set",
            hint="Write the whole path.",
        )
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    if isinstance(error, MemoryError) or no_thread or number in _USED_UP:
        what = "memory" if isinstance(error, MemoryError) else _strerror(error)
        return BusyError(
            f"ft has used up what the system grants it ({what})",
            hint="Try again shortly; ft doctor shows the limits.",
            code="out_of_resources",
        )
    if number not in _DISK_ERRORS:
        return None
    where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    return FtmanError(
        f"the disk refused: {_strerror(error)}{where}",
        hint="See whether it is full, or may not be written: ft doctor",
        code="store_io",
        status=507 if number in (errno.ENOSPC, errno.EDQUOT) else 500,
    )


def _strerror(error: Exception) -> str:
    return str(getattr(error, "strerror", "") or error)

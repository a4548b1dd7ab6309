"""API keys: who may use a manager and who may manage it, in one small file that holds no key.

What right a route needs stands in gateway/rights.py. Keys are long random texts, so that a plain
hash of one gives nothing away.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ftman import files
from ftman.clock import SYSTEM, Clock
from ftman.config import Paths
from ftman.errors import ConflictError, IntegrityError, NotFoundError, UsageError

log = logging.getLogger(__name__)

USE, MANAGE = "use", "manage"
RIGHTS = (USE, MANAGE)
FILE_LIMIT_BYTES = 1 << 20
MAX_KEYS = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True)
class ApiKey:
    """One key as it is kept. rights "use": ask models; "manage": that, and change what is here."""

    name: str
    rights: str
    sha256: str
    created_wall_s: float = 0.0

    @property
    def manages(self) -> bool:
        """Whether it may change what is here."""
        return self.rights == MANAGE


def key_of(secret: str, name: str = "given", rights: str = MANAGE) -> ApiKey:
    """A key made of a text that is known."""
    return ApiKey(name, rights, _hash(secret))


class KeyRing:
    """The keys that a manager accepts: those of its file, which may change, and given ones.

    A file that cannot be read any more leaves the keys read last in force.
    """

    def __init__(self, path: Path | None = None, given: Iterable[ApiKey] = ()):
        self._path = path
        self._given = tuple(given)
        self._kept: tuple[ApiKey, ...] = ()
        self._seen: tuple[int, int, int] | None = None
        if path is not None:
            self._kept = read_keys(path)
            self._seen = _signature(path)

    @property
    def asks(self) -> bool:
        """Whether there is a key at all, so that one must be shown."""
        return bool(self._given or self._current())

    def find(self, secret: str, extra: Iterable[ApiKey] = ()) -> ApiKey | None:
        """The key of that text. Every one is compared, so that the time taken says nothing."""
        given = _hash(secret)
        keys = (*self._given, *self._current(), *extra)
        found = [key for key in keys if hmac.compare_digest(key.sha256, given)]
        return found[0] if found and secret else None

    def _current(self) -> tuple[ApiKey, ...]:
        if self._path is None or _signature(self._path) == self._seen:
            return self._kept
        self._seen = _signature(self._path)
        try:
            self._kept = read_keys(self._path)
        except IntegrityError as error:
            log.error("%s; the keys read before stay in force", error.message)
        return self._kept


def keys_path(paths: Paths) -> Path:
    """Where the keys of a manager lie."""
    return paths.home / "keys.json"


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys of a file, none when it is missing.   Raises: IntegrityError."""
    try:
        value = json.loads(files.read_bytes(path, limit=FILE_LIMIT_BYTES))
        found = tuple(ApiKey(**item) for item in value["keys"])
        if any(key.rights not in RIGHTS or len(key.sha256) != 64 for key in found):
            raise ValueError("a key has no known rights")
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"the API keys in {path} cannot be read: {error}",
            hint=f"Mend the file, or delete it and make the keys anew: rm {path}; ft key create",
            code="keys_damaged",
            status=500,
        ) from None
    return found


def create_key(path: Path, name: str, rights: str, clock: Clock = SYSTEM) -> str:
    """Add a key and return its text, shown this once.   Raises: UsageError, ConflictError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a key cannot be named {name[:60]!r}",
            hint="Letters, digits, '.', '_' and '-', 40 at most: ft key create laptop",
        )
    keys = read_keys(path)
    if any(key.name == name for key in keys):
        raise ConflictError(
            f"there is a key named {name}", hint=f"Remove it first: ft key rm {name}"
        )
    if len(keys) >= MAX_KEYS:
        raise ConflictError(f"there are {MAX_KEYS} keys, which is the limit", hint="ft key rm NAME")
    secret = "ft-" + secrets.token_urlsafe(32)
    _write(path, (*keys, ApiKey(name, rights, _hash(secret), clock.wall())))
    return secret


def remove_key(path: Path, name: str) -> ApiKey:
    """Take a key away; it opens nothing from now on.   Raises: NotFoundError."""
    keys = read_keys(path)
    gone = next((key for key in keys if key.name == name), None)
    if gone is None:
        names = ", ".join(key.name for key in keys) or "none"
        raise NotFoundError(f"no key named {name[:60]!r}", hint=f"There are: {names}")
    _write(path, tuple(key for key in keys if key is not gone))
    return gone


def _write(path: Path, keys: tuple[ApiKey, ...]) -> None:
    data = json.dumps({"keys": [asdict(key) for key in keys]}, indent=1)
    files.write_atomic(path, data.encode() + b"\n")


def _hash(secret: str) -> str:
    return hashlib.sha256(b"ft key\0" + secret.encode("utf-8", "replace")).hexdigest()


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino

"""Digests of source files: whole-file checks, and a SHA-256 whose state survives a restart."""

from __future__ import annotations

import base64
import binascii
import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ftman import files

# SHA256_CTX of OpenSSL: 8 chaining words, 64-bit count, 16 buffered words, two more fields.
_STATE_BYTES = 112


class Hash(Protocol):
    """The part of hashlib that is used here."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_hash(digest: str, size: int) -> Hash | None:
    """A fresh hash of the kind `digest` names; None if there is nothing to compare with."""
    kind, _, value = digest.partition(":")
    if kind == "sha256" and value:
        return hashlib.sha256()
    if kind == "git-sha1" and value:
        # Git's own name for a blob; weak alone, but the hub gives nothing better for small files.
        return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    return None


def file_digest(path: Path, digest: str, on_bytes: Callable[[int], None]) -> str:
    """Hash a whole file the way `digest` was made; returns "kind:hex", or "" without a kind."""
    hasher = new_hash(digest, path.stat().st_size)
    if hasher is None:
        return ""
    with files.open_read(path) as reader:
        while chunk := reader.read(files.CHUNK_BYTES):
            hasher.update(chunk)
            on_bytes(len(chunk))
    return f"{digest.partition(':')[0]}:{hasher.hexdigest()}"


class SavableSha256:
    """SHA-256 with `save` and `restore`, through the crypto library Python itself is linked to.

    A file fetched in windows is hashed as it passes and then dropped, so after a crash the hash
    must go on where it was. hashlib cannot be saved; the C structure behind it can.
    """

    def __init__(self) -> None:
        self._library = _crypto_library()
        self._state = ctypes.create_string_buffer(_STATE_BYTES + 16)
        self._plain = hashlib.sha256()
        if self._library is not None:
            self._library.SHA256_Init(self._state)

    @property
    def can_save(self) -> bool:
        """False where the crypto library does not show the functions."""
        return self._library is not None

    def update(self, data: bytes, /) -> None:
        """Add bytes."""
        if self._library is None:
            self._plain.update(data)
        else:
            self._library.SHA256_Update(self._state, data, ctypes.c_size_t(len(data)))

    def hexdigest(self) -> str:
        """Digest of what was added; the hash can go on."""
        if self._library is None:
            return self._plain.hexdigest()
        copy = ctypes.create_string_buffer(self._state.raw, len(self._state))
        result = ctypes.create_string_buffer(32)
        self._library.SHA256_Final(result, copy)
        return result.raw.hex()

    def save(self) -> str:
        """State as text; "" when it cannot be saved."""
        return base64.b64encode(self._state.raw).decode() if self._library is not None else ""

    def restore(self, text: str) -> bool:
        """Take up a saved state; False if that is not possible."""
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return False
        if self._library is None or len(raw) != len(self._state):
            return False
        self._state = ctypes.create_string_buffer(raw, len(raw))
        return True


def _crypto_library() -> Any:
    try:
        import _hashlib

        library = ctypes.CDLL(_hashlib.__file__)
        for name in ("SHA256_Init", "SHA256_Update", "SHA256_Final"):
            getattr(library, name)
    except (ImportError, OSError, AttributeError):
        return None
    return library if _agrees(library) else None


def _agrees(library: Any) -> bool:
    state, result = ctypes.create_string_buffer(_STATE_BYTES + 16), ctypes.create_string_buffer(32)
    library.SHA256_Init(state)
    library.SHA256_Update(state, b"abc", ctypes.c_size_t(3))
    library.SHA256_Final(result, state)
    return result.raw == hashlib.sha256(b"abc").digest()

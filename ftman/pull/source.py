"""What a model is fetched from, as plain facts: files, mirrors, revision. No I/O here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Mirror:
    """One URL that serves a file's bytes. All files of one `group` come from one place.

    token is a secret for this URL's own host only.
    """

    url: str
    group: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class SourceFile:
    """One file of a model, remote (mirrors) or on this machine (path).

    digest: "sha256:<hex>", "git-sha1:<hex>" (git's blob id) or "" when nobody says. Units: bytes.
    """

    name: str
    bytes: int
    digest: str = ""
    mirrors: tuple[Mirror, ...] = ()
    path: Path | None = None

    @property
    def sha256(self) -> str | None:
        """Hex SHA-256 if it is known beforehand."""
        kind, _, value = self.digest.partition(":")
        return value if kind == "sha256" else None


@dataclass(frozen=True)
class WheelMember:
    """A file inside a Python wheel. `package==version` with the wheel's hash is all pip needs."""

    package: str
    version: str
    member: str
    wheel_sha256: str
    wheel_bytes: int = 0

    @property
    def requirement(self) -> str:
        """The one line of a requirements file that pip checks hashes for."""
        return f"{self.package}=={self.version} --hash=sha256:{self.wheel_sha256}"


@dataclass(frozen=True)
class ResolvedSource:
    """Everything needed to fetch: fixed before the first byte (a revision is a commit here).

    kind: "gguf" or "safetensors". origin is for people and for the manifest. remake: what is made
    of the weights after their conversion.
    """

    kind: str
    files: tuple[SourceFile, ...]
    origin: str
    revision: str = ""
    derive: Mapping[str, Any] | None = None
    remake: Mapping[str, Any] | None = None
    wheel: WheelMember | None = None
    wheel_path: Path | None = None

    @property
    def bytes(self) -> int:
        """Sum of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def remote(self) -> bool:
        """True if bytes must come over the network by ranges."""
        return any(file.path is None for file in self.files) and self.wheel is None

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest keeps about where the model came from."""
        remade = {"remake": dict(self.remake)} if self.remake else {}
        return remade | {
            "origin": self.origin,
            "revision": self.revision,
            "kind": self.kind,
            "files": [
                {"name": file.name, "bytes": file.bytes, "digest": file.digest}
                for file in self.files
            ],
            "derive": dict(self.derive) if self.derive else None,
        }

    @property
    def identity(self) -> str:
        """Hex digest over `facts`: equal sources have equal bytes and make an equal model."""
        text = json.dumps(self.facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def digest(self) -> str:
        """The digest shown while pulling: the file's own when there is one, else the set's."""
        if len(self.files) == 1 and self.files[0].sha256:
            return f"sha256:{self.files[0].sha256}"
        return f"sha256:{self.identity}"

    @property
    def pinned(self) -> bool:
        """True if equal identity proves equal bytes: every file has a digest, or git a commit."""
        return bool(self.revision) or all(file.digest for file in self.files)


@dataclass(frozen=True)
class LocalSource:
    """A folder, GGUF file or wheel on this machine to install from instead of the network."""

    path: Path

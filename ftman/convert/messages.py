"""Typed form of what the manager and a converter child say to each other, one JSON per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftman.errors import (
    CannotFitError,
    FtmanError,
    IntegrityError,
    UnsupportedError,
    UsageError,
)

_ERRORS: Mapping[str, Callable[..., FtmanError]] = {
    "disk_full": CannotFitError,
    "capacity": CannotFitError,
    "load_failed": UnsupportedError,
    "unknown_tensor": UnsupportedError,
    "bad_format": IntegrityError,
    "bad_request": UsageError,
}


@dataclass(frozen=True)
class ConvertFile:
    """A source file as the child sees it. Units: bytes."""

    name: str
    bytes: int
    sha256: str | None = None


@dataclass(frozen=True)
class ConvertSpec:
    """One conversion. source: "gguf" or "safetensors"; target: the FTW folder to be made."""

    name: str
    source: str
    files: tuple[ConvertFile, ...]
    target: Path
    derive: Mapping[str, Any] | None = None

    def line(self) -> bytes:
        """The first line for the child."""
        return encode({"job": self.job()})

    def job(self) -> dict[str, Any]:
        """What that line holds."""
        return {
            "source": self.source,
            "files": [{"name": f.name, "bytes": f.bytes, "sha256": f.sha256} for f in self.files],
            "target": str(self.target),
            "derive": dict(self.derive) if self.derive else None,
            "name": self.name,
        }


@dataclass(frozen=True)
class ByteRange:
    """Bytes [start, end) of one source file."""

    file: str
    start: int
    end: int


@dataclass(frozen=True)
class Have:
    """Bytes [start, end) of a source file lie in `path` from `path_offset` on."""

    file: str
    start: int
    end: int
    path: Path
    path_offset: int = 0

    def line(self) -> bytes:
        """The line for the child."""
        return encode(
            {
                "have": {
                    "file": self.file,
                    "start": self.start,
                    "end": self.end,
                    "path": str(self.path),
                    "path_offset": self.path_offset,
                }
            }
        )


@dataclass(frozen=True)
class ConvertResult:
    """What a finished conversion says of the model. Units: bytes on disk, in RAM, per token."""

    ftw_id: str
    bytes: int
    family: str
    details: Mapping[str, Any]
    model_info: Mapping[str, Any]
    capabilities: tuple[str, ...]
    eos_ids: tuple[int, ...]
    load_bytes: int
    kv_bytes_per_token: int
    notes: tuple[str, ...] = ()
    kv_q8_0_bytes_per_token: int = 0


@dataclass(frozen=True)
class ConvertPlan:
    """What a conversion would make and cost, from headers alone. Units: bytes, 0 = not said.

    unbuilt: why it cannot be converted yet. content: all that was said, for the engine's forecast.
    """

    disk_bytes: int
    peak_disk_bytes: int
    details: Mapping[str, Any] = field(default_factory=dict)
    unbuilt: str = ""
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RepairSpec:
    """Stretches of a converted folder (`conversion.target`) to make anew from its source."""

    conversion: ConvertSpec
    damage: tuple[ByteRange, ...]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.conversion.name

    def line(self) -> bytes:
        """The first line for the child."""
        damage = [{"file": d.file, "start": d.start, "end": d.end} for d in self.damage]
        return encode({"job": {**self.conversion.job(), "damage": damage}})


@dataclass(frozen=True)
class RepairResult:
    """What a repair came to. left: what the source's bytes do not lead to. Units: bytes written."""

    left: tuple[ByteRange, ...]
    bytes: int


def parse_repair(body: Mapping[str, Any]) -> RepairResult:
    """The body of `repair`.   Raises: ValueError, KeyError, TypeError."""
    return RepairResult(tuple(parse_range(item) for item in body["left"]), int(body["bytes"]))


def encode(value: Mapping[str, Any]) -> bytes:
    """One NDJSON line."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def parse_line(line: bytes) -> tuple[str, Any]:
    """(kind, body) of one line of the child.   Raises: ValueError if it is no such line."""
    value = json.loads(line)
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("a line holds one key")
    ((kind, body),) = value.items()
    if not isinstance(body, dict):
        raise ValueError(f"{kind} must be an object")
    return kind, body


def parse_range(body: Mapping[str, Any]) -> ByteRange:
    """The body of `need` and `done`.   Raises: ValueError, KeyError, TypeError."""
    found = ByteRange(str(body["file"]), int(body["start"]), int(body["end"]))
    if not 0 <= found.start <= found.end:
        raise ValueError(f"range {found.start}-{found.end} of {found.file} is not valid")
    return found


def parse_result(body: Mapping[str, Any]) -> ConvertResult:
    """The body of `result`.   Raises: ValueError, KeyError, TypeError."""
    ftw_id = str(body["ftw_id"])
    if len(ftw_id) != 64 or not set(ftw_id) <= set("0123456789abcdef"):
        raise ValueError(f"ftw_id {ftw_id[:80]!r} is not a digest")
    return ConvertResult(
        ftw_id=ftw_id,
        bytes=int(body["bytes"]),
        family=str(body["family"]),
        details=dict(body["details"]),
        model_info=dict(body["model_info"]),
        capabilities=tuple(map(str, body["capabilities"])),
        eos_ids=tuple(map(int, body["eos_ids"])),
        load_bytes=int(body["load_bytes"]),
        kv_bytes_per_token=int(body["kv_bytes_per_token"]),
        notes=tuple(map(str, body.get("notes", ()))),
        kv_q8_0_bytes_per_token=int(body.get("kv_q8_0_bytes_per_token", 0)),
    )


def parse_plan(body: Mapping[str, Any]) -> ConvertPlan:
    """The body of `plan`.   Raises: ValueError, TypeError."""
    inner = body.get("details")
    return ConvertPlan(
        disk_bytes=int(body.get("disk_bytes", 0)),
        peak_disk_bytes=int(body.get("peak_disk_bytes", 0)),
        details=dict(inner if isinstance(inner, dict) else body),
        unbuilt=str(body.get("unbuilt", "")),
        content=dict(body),
    )


def error_of(body: Mapping[str, Any]) -> FtmanError:
    """The manager's error for the child's `error` line."""
    code = str(body.get("code", "convert_failed"))
    unsupported = code.startswith("unsupported")
    make = UnsupportedError if unsupported else _ERRORS.get(code, FtmanError)
    hint = str(body.get("hint") or "")
    if code == "disk_full" and not hint:
        hint = "What was done is kept. Free some space, then run the same command again."
    return make(str(body.get("message") or "converting failed"), hint=hint, code=code)

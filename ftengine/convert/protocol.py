"""Lines between manager and converter: the job, the windows, and what goes back.

One JSON object a line on stdin and stdout. Nothing here touches weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ftengine.errors import EngineError, RequestError

LINE_LIMIT_BYTES = 8_000_000
CONVERTER_VERSION = 2
"""Part of a job's fingerprint: a journal of another version is not resumed."""

SOURCES = ("gguf", "safetensors")
_EXPERT_LIMIT = 1024


class StoppedError(EngineError):
    """The manager asked to stop; the journal is kept."""

    code = "cancelled"
    retryable = True


@dataclass(frozen=True)
class SourceFile:
    """One file of the checkpoint. sha256 is None where the source does not tell."""

    name: str
    bytes: int
    sha256: str | None = None


@dataclass(frozen=True)
class Derive:
    """Make a MoE out of a dense model: num_experts copies of its MLP and a seeded router."""

    kind: str
    num_experts: int
    top_k: int
    seed: int = 0
    router_scale: float = 4.0

    def recipe(self) -> dict[str, Any]:
        """The recipe as stored beside derived bytes."""
        return {
            "kind": self.kind,
            "num_experts": self.num_experts,
            "router_scale": self.router_scale,
            "seed": self.seed,
            "top_k": self.top_k,
        }


@dataclass(frozen=True)
class Job:
    """What to convert, and where to."""

    source: str
    files: tuple[SourceFile, ...]
    target: Path
    derive: Derive | None = None
    name: str = ""

    def fingerprint(self) -> str:
        """Equal for jobs that lead to the same bytes."""
        value = [
            CONVERTER_VERSION,
            self.source,
            [[item.name, item.bytes, item.sha256] for item in self.files],
            self.derive.recipe() if self.derive else None,
        ]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()


@dataclass(frozen=True)
class Have:
    """Bytes [start, end) of a source file lie at path[path_offset : path_offset + end - start]."""

    file: str
    start: int
    end: int
    path: Path
    path_offset: int = 0


class Link(Protocol):
    """Where messages go and windows come from."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand one message to the manager."""

    def receive(self, *, block: bool) -> Have | None:
        """The next window; None if none is there and `block` is false. Raises: StoppedError."""


class PipeLink:
    """A Link over two pipes; reads on its own thread so that a cancel is seen between tensors."""

    def __init__(self, source_fd: int, sink: IO[bytes]):
        self._sink = sink
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._pump, args=(source_fd,), daemon=True).start()

    def receive_job(self) -> Job:
        """The first line. Raises: RequestError naming the field, StoppedError at end of input."""
        return parse_job(self.receive_first("job"))

    def receive_first(self, key: str) -> Any:
        """What stands under `key` in the first line. Raises: RequestError, StoppedError."""
        value = self._next(block=True)
        if value is None or key not in value:
            raise RequestError(f'the first line must be {{"{key}": {{...}}}}')
        return value[key]

    def receive(self, *, block: bool) -> Have | None:
        value = self._next(block=block)
        if value is None:
            return None
        if value.get("cancel"):
            raise StoppedError("the conversion was cancelled; it resumes when started again")
        return _parse_have(value)

    def stop(self) -> None:
        """Make the next receive raise StoppedError; safe in a signal handler."""
        self._queue.put(None)

    def send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            self._sink.write(line)
            self._sink.flush()
        except BrokenPipeError:
            raise StoppedError("the manager is gone; the conversion resumes later") from None

    def _next(self, *, block: bool) -> dict[str, Any] | None:
        try:
            line = self._queue.get(block=block)
        except queue.Empty:
            return None
        if line is None:
            self._queue.put(None)
            raise StoppedError("the conversion was stopped; it resumes when started again")
        return _parse_line(line)

    def _pump(self, fd: int) -> None:
        """Raw reads: a buffered stdin would be locked by this thread when the process ends."""
        held = b""
        while True:
            try:
                chunk = os.read(fd, 1 << 16)
            except OSError:
                chunk = b""
            *lines, held = (held + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    self._queue.put(line)
            if not chunk or len(held) > LINE_LIMIT_BYTES:
                if held.strip():
                    self._queue.put(held)
                self._queue.put(None)
                return


def parse_job(value: Any) -> Job:
    """Check a job. Raises: RequestError naming the field."""
    if not isinstance(value, dict):
        raise RequestError("job must be an object")
    if value.get("source") not in SOURCES:
        raise RequestError(f"job.source must be one of {', '.join(SOURCES)}")
    target = value.get("target")
    if not isinstance(target, str) or not Path(target).is_absolute():
        raise RequestError("job.target must be an absolute path")
    listed = value.get("files")
    if not isinstance(listed, list) or not listed:
        raise RequestError("job.files must list at least one file")
    parsed = sorted((_parse_file(item) for item in listed), key=lambda item: item.name)
    if len({item.name for item in parsed}) != len(parsed):
        raise RequestError("job.files lists a name twice")
    derive = value.get("derive")
    return Job(
        value["source"],
        tuple(parsed),
        Path(target),
        None if derive is None else parse_derive(derive),
        str(value.get("name", "")),
    )


def parse_derive(value: Any) -> Derive:
    """Check a recipe. Raises: RequestError naming the field."""
    if not isinstance(value, dict) or value.get("kind") != "upcycle":
        raise RequestError('job.derive.kind must be "upcycle"')
    experts, top_k = value.get("num_experts"), value.get("top_k")
    if type(experts) is not int or not 1 <= experts <= _EXPERT_LIMIT:
        raise RequestError(f"job.derive.num_experts must be 1 to {_EXPERT_LIMIT}")
    if type(top_k) is not int or not 1 <= top_k <= experts:
        raise RequestError("job.derive.top_k must be 1 to num_experts")
    seed, scale = value.get("seed", 0), value.get("router_scale", 4.0)
    if type(seed) is not int or not 0 <= seed < 1 << 64:
        raise RequestError("job.derive.seed must be 0 to 2^64 - 1")
    if type(scale) not in (int, float) or not 0 < scale <= 1e6:
        raise RequestError("job.derive.router_scale must be above 0 and at most 1e6")
    return Derive("upcycle", experts, top_k, seed, float(scale))


def _parse_file(value: Any) -> SourceFile:
    if not isinstance(value, dict):
        raise RequestError("job.files must hold objects")
    name, size, digest = value.get("name"), value.get("bytes"), value.get("sha256")
    if not isinstance(name, str) or not 0 < len(name) <= 1024:
        raise RequestError("job.files: name must be a text")
    if type(size) is not int or not 0 <= size < 1 << 56:
        raise RequestError(f"job.files: bytes of {name} must be a whole number")
    if digest is not None and not isinstance(digest, str):
        raise RequestError(f"job.files: sha256 of {name} must be hex or null")
    return SourceFile(name, size, digest)


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or len(line) > LINE_LIMIT_BYTES:
        raise RequestError(f"a line is not a JSON object: {line[:80]!r}")
    return value


def _parse_have(value: dict[str, Any]) -> Have:
    inner = value.get("have")
    if not isinstance(inner, dict):
        raise RequestError(f"expected a have or cancel line, got keys {sorted(value)[:5]}")
    numbers = [inner.get("start"), inner.get("end"), inner.get("path_offset", 0)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise RequestError("have: start, end and path_offset must be whole numbers")
    if not isinstance(inner.get("file"), str) or not isinstance(inner.get("path"), str):
        raise RequestError("have: file and path must be texts")
    return Have(inner["file"], numbers[0], numbers[1], Path(inner["path"]), numbers[2])

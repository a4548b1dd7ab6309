"""Files of parked pages and states: their format, a folder of them, and what is wrong with them.

A file is a head, the tokens of its text, and rows: pages first, then states. Head and rows carry
xxh3 checksums. A file that is torn, damaged, or of another model is deleted, with one line in the
log; what it held is computed again. Which files there are, and when, is the business of
policy/parked.py.
"""

from __future__ import annotations

import array
import dataclasses
import errno
import json
import logging
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
import xxhash

from ftman import files

log = logging.getLogger(__name__)

FORMAT = 2
SUFFIX = ".park"
RESERVE_BYTES = 256 << 20
"""Left free on the disk."""
_MAGIC = b"ftpark\x00\x01"
_LEAD = struct.Struct("<8sI")
_HEAD_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class Head:
    """What a file holds. first: number of its first page in the text; states: tokens before each.

    identity: of the model and of all that its numbers depend on. Units: bytes of a page, a state.
    """

    identity: str
    salt: str
    num_tokens: int
    first: int
    num_pages: int
    states: tuple[int, ...]
    page_bytes: int
    state_bytes: int
    checks: tuple[str, ...] = ()
    tokens_check: str = ""
    format: int = FORMAT

    @property
    def rows_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_pages * self.page_bytes + len(self.states) * self.state_bytes

    def place(self, number: int) -> tuple[int, int]:
        """(offset in the rows, length) of a row."""
        before = min(number, self.num_pages)
        start = before * self.page_bytes + (number - before) * self.state_bytes
        return start, self.page_bytes if number < self.num_pages else self.state_bytes


@dataclass(frozen=True)
class Opened:
    """A file whose head was read. rows_at: where its rows begin. Units: bytes."""

    head: Head
    tokens: tuple[int, ...]
    rows_at: int
    num_bytes: int


class BadFileError(Exception):
    """A file that is not what its name says; the text says why."""


class ParkFolder:
    """A folder that one engine holds. identity: files of another one are of no use.

    Raises: OSError where it cannot be used; files.LockedError where another engine uses it.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self._identity = identity
        self._lock = files.Lock(path / ".lock")
        self._opened: dict[int, Opened] = {}
        self._failed = False

    def close(self) -> None:
        """Let another engine use it."""
        self._lock.release()

    def scan(self) -> Iterator[tuple[int, Opened]]:
        """(rank, file) of all that are good, lowest rank first; the others are deleted."""
        for path in sorted(self.path.iterdir()):
            if path.name.startswith(".") and path.suffix == ".tmp":
                files.unlink(path)  # a process was killed while it wrote this
            if path.suffix != SUFFIX:
                continue
            try:
                rank = int(path.stem, 16)
                opened = _open(path, self._identity)
            except (BadFileError, OSError, ValueError) as error:
                self._drop(path, str(error))
                continue
            self._opened[rank] = opened
            yield rank, opened

    def write(
        self, rank: int, head: Head, tokens: Sequence[int], rows: Sequence[torch.Tensor]
    ) -> int | None:
        """Make a file. Returns its bytes; None: it could not be written, which is logged once."""
        data, opened = _encode(head, tokens, rows)
        try:
            if files.free_bytes(self.path) < len(data) + RESERVE_BYTES:
                raise OSError(errno.ENOSPC, f"less than {RESERVE_BYTES} bytes would be left free")
            files.write_atomic(self._file(rank), data)
        except OSError as error:
            if not self._failed:
                log.warning("parked conversations cannot go to %s: %s", self.path, error)
            self._failed = True
            return None
        self._failed = False
        self._opened[rank] = opened
        return len(data)

    def read(self, rank: int, numbers: Sequence[int]) -> list[torch.Tensor] | None:
        """Rows of a file, checked. None: it is damaged, which is logged; the caller removes it.

        May be called on any thread; of a file that was removed since it returns None.
        Shape: each uint8 [page_bytes] or [state_bytes].
        """
        opened = self._opened.get(rank)
        if opened is None:
            return None
        try:
            with files.open_read(self._file(rank)) as reader:
                return [_read_row(reader, opened, number) for number in numbers]
        except (BadFileError, OSError) as error:
            if rank in self._opened:
                log.warning("parked file %s is of no use: %s", self._file(rank), error)
            return None

    def remove(self, rank: int) -> None:
        """Delete a file."""
        self._opened.pop(rank, None)
        try:
            files.unlink(self._file(rank))
        except OSError as error:
            log.warning("cannot delete %s: %s", self._file(rank), error)

    def _drop(self, path: Path, reason: str) -> None:
        log.warning("parked file %s is of no use and is deleted: %s", path, reason)
        try:
            files.unlink(path)
        except OSError as error:
            log.warning("cannot delete %s: %s", path, error)

    def _file(self, rank: int) -> Path:
        return self.path / f"{rank:016x}{SUFFIX}"


def file_bytes(num_tokens: int, num_rows: int, rows_bytes: int) -> int:
    """About what a file takes, never less. Units: bytes."""
    return 1024 + num_rows * 40 + 4 * num_tokens + rows_bytes


def _encode(
    head: Head, tokens: Sequence[int], rows: Sequence[torch.Tensor]
) -> tuple[bytes, Opened]:
    parts = [row.contiguous().view(torch.uint8).numpy().tobytes() for row in rows]
    ids = _pack(tokens)
    checks = tuple(xxhash.xxh3_128_hexdigest(part) for part in parts)
    head = dataclasses.replace(head, checks=checks, tokens_check=xxhash.xxh3_128_hexdigest(ids))
    text = json.dumps(dataclasses.asdict(head), separators=(",", ":")).encode()
    lead = _LEAD.pack(_MAGIC, len(text))
    start = b"".join((lead, text, xxhash.xxh3_128_digest(lead + text), ids))
    data = b"".join((start, *parts))
    return data, Opened(head, tuple(tokens), len(start), len(data))


def _open(path: Path, identity: str) -> Opened:
    """Read and check all but the rows. Raises: BadFileError, OSError."""
    size = path.stat().st_size
    with files.open_read(path) as reader:
        lead = reader.read(_LEAD.size)
        if len(lead) < _LEAD.size:
            raise BadFileError("it is cut short")
        magic, length = _LEAD.unpack(lead)
        if magic != _MAGIC or length > _HEAD_LIMIT_BYTES:
            raise BadFileError("it is no file of parked conversations")
        text = reader.read(length)
        if reader.read(16) != xxhash.xxh3_128_digest(lead + text):
            raise BadFileError("the checksum of its head is wrong")
        head = _head(text)
        if head.format != FORMAT:
            raise BadFileError(f"its format is {head.format} and not {FORMAT}")
        if head.identity != identity:
            raise BadFileError("it is of another model, or of another version or setting")
        ids = reader.read(4 * head.num_tokens)
    if xxhash.xxh3_128_hexdigest(ids) != head.tokens_check:
        raise BadFileError("the checksum of its tokens is wrong")
    rows_at = _LEAD.size + length + 16 + len(ids)
    if size != rows_at + head.rows_bytes:
        raise BadFileError(f"it has {size} bytes and not {rows_at + head.rows_bytes}")
    return Opened(head, _unpack(ids), rows_at, size)


def _head(text: bytes) -> Head:
    try:
        value = json.loads(text)
        value["states"], value["checks"] = tuple(value["states"]), tuple(value["checks"])
        return Head(**value)
    except (ValueError, TypeError, KeyError) as error:
        raise BadFileError(f"its head cannot be read ({error})") from None


def _read_row(reader: IO[bytes], opened: Opened, number: int) -> torch.Tensor:
    start, length = opened.head.place(number)
    reader.seek(opened.rows_at + start)
    row = np.fromfile(reader, np.uint8, length)
    if row.size != length or xxhash.xxh3_128_hexdigest(row.data) != opened.head.checks[number]:
        raise BadFileError(f"the checksum of row {number} is wrong")
    return torch.from_numpy(row)


def _pack(tokens: Sequence[int]) -> bytes:
    ids = array.array("i", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def _unpack(data: bytes) -> tuple[int, ...]:
    ids = array.array("i")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)

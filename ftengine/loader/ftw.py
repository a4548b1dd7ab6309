"""Reader of FTW folders (docs/ftw.md): checked index, checked sizes, reads into given memory.

No torch, no numpy. Writing lives in ftengine/convert; names are those of models/weight_names.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from ftengine.errors import FormatError
from ftman import files

VERSION = 1
ALIGN_BYTES = 4096
BLOCK_BYTES = 16 << 20
SHARD_BYTES = 8 << 30
INDEX_LIMIT_BYTES = 64 << 20
INDEX_NAME = "index.json"
_COUNT_LIMIT = 1 << 20
_SIZE_LIMIT = 1 << 56

if sys.platform == "linux":
    import fcntl


@dataclass(frozen=True)
class FtwShard:
    """One weight file. blocks: xxh3-128 hex of each 16 MiB block, the last one shorter."""

    file: str
    bytes: int
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class FtwFile:
    """One small file of the folder."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class FtwTensor:
    """A dense tensor: `bytes` bytes at `offset` of a shard, rows as in the checkpoint."""

    name: str
    shard: int
    offset: int
    bytes: int
    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True)
class FtwPart:
    """One part of every expert row of a bank. Units: bytes from the start of the row."""

    name: str
    format: str
    layout: str
    offset: int
    bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FtwBank:
    """All experts of one layer: num_experts rows of row_bytes, one whole expert each."""

    name: str
    shard: int
    offset: int
    num_experts: int
    row_bytes: int
    parts: tuple[FtwPart, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_experts * self.row_bytes

    def part(self, name: str) -> FtwPart:
        """The part called `name`. Raises: FormatError if the bank has none."""
        for candidate in self.parts:
            if candidate.name == name:
                return candidate
        raise FormatError(f"bank {self.name} has no part {name!r}")


@dataclass(frozen=True)
class FtwIndex:
    """A checked index.json."""

    family: str
    shards: tuple[FtwShard, ...]
    files: tuple[FtwFile, ...]
    tensors: tuple[FtwTensor, ...]
    banks: tuple[FtwBank, ...]

    def tensor(self, name: str) -> FtwTensor | None:
        """The dense tensor called `name`, or None."""
        return next((item for item in self.tensors if item.name == name), None)


@dataclass(frozen=True)
class DamagedBlock:
    """A block (or small file, block -1) whose bytes do not match the index."""

    file: str
    block: int


class FtwModel:
    """An open FTW folder; `read` may be called from several threads at once."""

    def __init__(self, path: Path, index: FtwIndex, config: dict[str, Any]):
        self.path = path
        self.index = index
        self.config = config
        self._plain = [(path / shard.file).open("rb", buffering=0) for shard in index.shards]
        self._direct = [_open_direct(path / shard.file) for shard in index.shards]
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path | str, check: str = "sizes") -> FtwModel:
        """Open a folder. check: "sizes", or "checksums" to read and hash everything as well.

        Raises: FormatError naming the file that is missing, of a wrong size or damaged.
        """
        path = Path(path)
        index = parse_index(_read_small(path / INDEX_NAME), str(path / INDEX_NAME))
        for name, size in _sizes(index):
            _check_size(path / name, size)
        if check == "checksums":
            for damage in find_damage(path, index):
                where = "" if damage.block < 0 else f" (block {damage.block} of 16 MiB)"
                raise FormatError(
                    f"{path / damage.file} is damaged{where}: its checksum is wrong; "
                    "pull the model again to repair it"
                )
        config = _parse_json(_read_small(path / "config.json"), str(path / "config.json"))
        return cls(path, index, config)

    @property
    def total_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(shard.bytes for shard in self.index.shards)

    def read(self, entry: FtwTensor | FtwBank, into: memoryview) -> None:
        """Fill the first entry.bytes of `into` with a tensor or bank.

        Direct I/O is used where `into` starts on a 4096-byte boundary and has room for the padding
        (bytes rounded up to 4096); then the padding is overwritten too.
        Raises: FormatError if the file ends early, ValueError if `into` is too short.
        """
        view = into.cast("B")
        if len(view) < entry.bytes:
            raise ValueError(f"{entry.name} needs {entry.bytes} bytes, got {len(view)}")
        padded = -(-entry.bytes // ALIGN_BYTES) * ALIGN_BYTES
        direct = self._direct[entry.shard]
        if direct is not None and len(view) >= padded and _is_aligned(view):
            if self._fill(direct, view[:padded], entry.offset):
                return
            self._direct[entry.shard] = None
        if not self._fill(self._plain[entry.shard], view[: entry.bytes], entry.offset):
            raise FormatError(f"{self.path / self.index.shards[entry.shard].file} ends early")

    def _fill(self, reader: IO[bytes], view: memoryview, offset: int) -> bool:
        done = 0
        while done < len(view):
            piece = view[done : done + (64 << 20)]
            try:
                count = self._read_some(reader, piece, offset + done)
            except OSError:
                if reader in self._plain:
                    raise
                return False
            if count == 0:
                return False
            done += count
            if reader not in self._plain and done % ALIGN_BYTES:
                return False
        return True

    def _read_some(self, reader: IO[bytes], piece: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(reader.fileno(), [piece], offset)
        with self._lock:
            reader.seek(offset)
            return int(reader.readinto(piece) or 0)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the files; may be called twice."""
        for reader in (*self._plain, *filter(None, self._direct)):
            reader.close()

    def __enter__(self) -> FtwModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def verify_blocks(
    model: FtwModel, on_bytes: Callable[[int], None] | None = None
) -> list[tuple[str, int]]:
    """Hash everything; returns (file, block) of what is damaged, block -1 for a small file."""
    return [(item.file, item.block) for item in find_damage(model.path, model.index, on_bytes)]


def find_damage(
    path: Path, index: FtwIndex, on_bytes: Callable[[int], None] | None = None
) -> Iterator[DamagedBlock]:
    """Compare every block and every small file with the index."""
    for small in index.files:
        if files.sha256_file(path / small.name, on_bytes) != small.sha256:
            yield DamagedBlock(small.name, -1)
    for shard in index.shards:
        for number, digest in enumerate(block_digests(path / shard.file, on_bytes)):
            if number >= len(shard.blocks) or digest != shard.blocks[number]:
                yield DamagedBlock(shard.file, number)


def block_digests(path: Path, on_bytes: Callable[[int], None] | None = None) -> Iterator[str]:
    """xxh3-128 hex of each 16 MiB block of a file."""
    with path.open("rb", buffering=0) as reader:
        while block := _read_block(reader):
            if on_bytes is not None:
                on_bytes(len(block))
            yield xxhash.xxh3_128_hexdigest(block)


def parse_index(data: bytes, where: str) -> FtwIndex:
    """Parse and check index.json. Raises: FormatError naming `where` and the entry."""
    value = _parse_json(data, where)
    if value.get("format") != "ftw" or value.get("version") != VERSION:
        raise FormatError(
            f"{where} is {value.get('format')!r} version {value.get('version')!r}; "
            f"this engine reads ftw version {VERSION}; update it, or pull the model again"
        )
    reading = _Reading(where)
    shards = tuple(reading.shard(item) for item in reading.items(value, "shards"))
    small = tuple(reading.file(item) for item in reading.items(value, "files"))
    tensors = tuple(reading.tensor(item) for item in reading.items(value, "tensors"))
    banks = tuple(reading.bank(item) for item in reading.items(value, "banks"))
    index = FtwIndex(reading.text(value, "family"), shards, small, tensors, banks)
    _check_names(index, where)
    _check_regions(index, where)
    return index


class _Reading:
    """Typed access to hostile JSON; every refusal names the file and the field."""

    def __init__(self, where: str):
        self.where = where

    def fail(self, what: str) -> FormatError:
        return FormatError(f"{self.where}: {what}")

    def items(self, value: dict[str, Any], key: str) -> list[dict[str, Any]]:
        found = value.get(key)
        if not isinstance(found, list) or len(found) > _COUNT_LIMIT:
            raise self.fail(f"{key} must be a list of at most {_COUNT_LIMIT} entries")
        if not all(isinstance(item, dict) for item in found):
            raise self.fail(f"{key} must hold objects")
        return found

    def text(self, value: dict[str, Any], key: str) -> str:
        found = value.get(key)
        if not isinstance(found, str) or not 0 < len(found) <= 256:
            raise self.fail(f"{key} must be a text of 1 to 256 characters")
        return found

    def number(self, value: dict[str, Any], key: str, low: int = 0) -> int:
        found = value.get(key)
        if type(found) is not int or not low <= found <= _SIZE_LIMIT:
            raise self.fail(f"{key} must be a whole number from {low}")
        return found

    def name(self, value: dict[str, Any], key: str) -> str:
        found = self.text(value, key)
        if Path(found).name != found or found in (".", "..") or "\\" in found or "\0" in found:
            raise self.fail(f"{key} {found!r} is not a plain file name")
        return found

    def shape(self, value: dict[str, Any]) -> tuple[int, ...]:
        found = value.get("shape")
        if not isinstance(found, list) or not 1 <= len(found) <= 4:
            raise self.fail("shape must hold 1 to 4 sizes")
        if not all(type(size) is int and 0 < size <= 1 << 40 for size in found):
            raise self.fail("shape must hold sizes above 0")
        return tuple(found)

    def shard(self, value: dict[str, Any]) -> FtwShard:
        size = self.number(value, "bytes")
        blocks = value.get("blocks")
        if not isinstance(blocks, list) or len(blocks) != -(-size // BLOCK_BYTES):
            raise self.fail(f"shard blocks must hold one checksum per {BLOCK_BYTES} bytes")
        if not all(isinstance(block, str) and len(block) == 32 for block in blocks):
            raise self.fail("shard blocks must be 32 hex digits each")
        return FtwShard(self.name(value, "file"), size, tuple(blocks))

    def file(self, value: dict[str, Any]) -> FtwFile:
        return FtwFile(
            self.name(value, "name"), self.number(value, "bytes"), self.text(value, "sha256")
        )

    def tensor(self, value: dict[str, Any]) -> FtwTensor:
        return FtwTensor(
            self.text(value, "name"),
            self.number(value, "shard"),
            self.number(value, "offset"),
            self.number(value, "bytes", 1),
            self.shape(value),
            self.text(value, "format"),
        )

    def bank(self, value: dict[str, Any]) -> FtwBank:
        bank = FtwBank(
            self.text(value, "name"),
            self.number(value, "shard"),
            self.number(value, "offset"),
            self.number(value, "num_experts", 1),
            self.number(value, "row_bytes", ALIGN_BYTES),
            tuple(self.part(item) for item in self.items(value, "parts")),
        )
        end = 0
        for part in sorted(bank.parts, key=lambda item: item.offset):
            if part.offset < end or part.offset % 64 or part.offset + part.bytes > bank.row_bytes:
                raise self.fail(
                    f"{bank.name}: part {part.name} overlaps, is misaligned or too long"
                )
            end = part.offset + part.bytes
        if bank.row_bytes % ALIGN_BYTES or not bank.parts:
            raise self.fail(
                f"{bank.name}: row_bytes must be a multiple of {ALIGN_BYTES}, with parts"
            )
        return bank

    def part(self, value: dict[str, Any]) -> FtwPart:
        return FtwPart(
            self.text(value, "name"),
            self.text(value, "format"),
            self.text(value, "layout"),
            self.number(value, "offset"),
            self.number(value, "bytes", 1),
            self.shape(value),
        )


def _check_names(index: FtwIndex, where: str) -> None:
    groups = (
        [shard.file for shard in index.shards] + [item.name for item in index.files] + [INDEX_NAME],
        [item.name for item in index.tensors] + [item.name for item in index.banks],
    )
    for names in groups:
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FormatError(f"{where}: {twice} is listed twice")


def _check_regions(index: FtwIndex, where: str) -> None:
    every: list[FtwTensor | FtwBank] = [*index.tensors, *index.banks]
    regions = sorted(every, key=lambda item: (item.shard, item.offset))
    last: tuple[int, int, str] = (-1, 0, "")
    for item in regions:
        if item.shard >= len(index.shards):
            raise FormatError(f"{where}: {item.name} lies in unlisted shard {item.shard}")
        shard = index.shards[item.shard]
        padded = -(-item.bytes // ALIGN_BYTES) * ALIGN_BYTES
        if item.offset % ALIGN_BYTES or item.offset + padded > shard.bytes:
            raise FormatError(f"{where}: {item.name} is misaligned or ends outside {shard.file}")
        if last[0] == item.shard and item.offset < last[1]:
            raise FormatError(f"{where}: {item.name} overlaps {last[2]} in {shard.file}")
        last = (item.shard, item.offset + padded, item.name)


def _sizes(index: FtwIndex) -> Iterator[tuple[str, int]]:
    yield from ((shard.file, shard.bytes) for shard in index.shards)
    yield from ((item.name, item.bytes) for item in index.files)


def _check_size(path: Path, expected: int) -> None:
    try:
        actual = path.stat().st_size
    except OSError:
        raise FormatError(f"{path} is missing; pull the model again to repair it") from None
    if actual != expected:
        raise FormatError(
            f"{path} has {actual} bytes, the index says {expected}; pull the model again"
        )


def _read_small(path: Path) -> bytes:
    try:
        return files.read_bytes(path, limit=INDEX_LIMIT_BYTES)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None


def _parse_json(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > INDEX_LIMIT_BYTES:
        raise FormatError(f"{where} is larger than {INDEX_LIMIT_BYTES} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where} must hold a JSON object")
    return value


def _read_block(reader: IO[bytes]) -> bytearray:
    block = bytearray(BLOCK_BYTES)
    view, done = memoryview(block), 0
    while done < BLOCK_BYTES:
        count = int(reader.readinto(view[done:]) or 0)  # type: ignore[attr-defined]
        if count == 0:
            break
        done += count
    view.release()
    del block[done:]
    return block


def _open_direct(path: Path) -> IO[bytes] | None:
    """A second handle that bypasses the page cache; None where the system refuses."""
    if sys.platform != "linux" or not hasattr(os, "O_DIRECT"):
        return None
    reader = path.open("rb", buffering=0)
    try:
        flags = fcntl.fcntl(reader.fileno(), fcntl.F_GETFL)
        fcntl.fcntl(reader.fileno(), fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        reader.close()
        return None
    return reader


def _is_aligned(view: memoryview) -> bool:
    if view.readonly:
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    return address % ALIGN_BYTES == 0

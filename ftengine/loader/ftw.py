"""Reader of FTW folders (docs/ftw.md): checked sizes, reads into given memory, checksums.

No torch, no numpy. The index is ftw_index.py's; writing lives in ftengine/convert; names are those
of models/weight_names.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import xxhash

from ftengine.errors import FormatError
from ftengine.loader.block_check import BlockCheck, wrong_checksum
from ftengine.loader.cached_file import CachedFile
from ftengine.loader.ftw_index import (
    ALIGN_BYTES,
    BLOCK_BYTES,
    INDEX_LIMIT_BYTES,
    INDEX_NAME,
    SHARD_BYTES,
    VERSION,
    FtwBank,
    FtwFile,
    FtwIndex,
    FtwPart,
    FtwShard,
    FtwTensor,
    parse_index,
    parse_object,
)
from ftman import files

__all__ = [
    "ALIGN_BYTES",
    "BLOCK_BYTES",
    "INDEX_NAME",
    "SHARD_BYTES",
    "VERSION",
    "FtwBank",
    "FtwFile",
    "FtwIndex",
    "FtwModel",
    "FtwPart",
    "FtwShard",
    "FtwTensor",
    "block_digests",
    "find_damage",
    "parse_index",
    "verify_blocks",
]

if sys.platform == "linux":
    import fcntl

_READERS = 2
"""Threads that read and hash one large tensor or bank, a block at a time."""
_CACHED_ONLY: int = getattr(os, "RWF_NOWAIT", 0)


@dataclass(frozen=True)
class DamagedBlock:
    """A block (or small file, block -1) whose bytes do not match the index."""

    file: str
    block: int


class FtwModel:
    """An open FTW folder; `read` may be called from several threads at once."""

    def __init__(
        self, path: Path, index: FtwIndex, config: dict[str, Any], blocks: BlockCheck | None = None
    ):
        self.path = path
        self._blocks = blocks
        self.index = index
        self.config = config
        self._plain = [(path / shard.file).open("rb", buffering=0) for shard in index.shards]
        self._direct = [_open_direct(path / shard.file) for shard in index.shards]
        self._cached: list[CachedFile | None] = [None] * len(index.shards)
        self._checking: Future[None] | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="check")

    @classmethod
    def open(cls, path: Path | str, check: str = "sizes") -> FtwModel:
        """Open a folder. check: "sizes", or "checksums" to read and hash everything as well.

        "reading" hashes the small files now and the weights while they are read; see `check_rest`.
        Raises: FormatError naming the file that is missing, of a wrong size or damaged.
        """
        path = Path(path)
        index = parse_index(_read_small(path / INDEX_NAME), str(path / INDEX_NAME))
        for name, size in _sizes(index):
            _check_size(path / name, size)
        if check == "checksums":
            for damage in find_damage(path, index):
                raise wrong_checksum(str(path / damage.file), damage.block)
        blocks = None
        if check == "reading":
            for damage in find_damage(path, replace(index, shards=())):
                raise wrong_checksum(str(path / damage.file), damage.block)
            blocks = BlockCheck(str(path), index.shards, BLOCK_BYTES)
        config = parse_object(_read_small(path / "config.json"), str(path / "config.json"))
        return cls(path, index, config, blocks)

    @property
    def total_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(shard.bytes for shard in self.index.shards)

    def map_cached(self) -> None:
        """Map the shards that the page cache holds; their checks begin beside what follows."""
        shards = self.index.shards
        self._cached = [CachedFile.find(self.path / item.file, item.bytes) for item in shards]
        mapped = {shard for shard, found in enumerate(self._cached) if found is not None}
        if mapped and self._blocks is not None:
            check, each = self._blocks.check_rest, self._readers.map
            self._checking = self._checker.submit(check, self._read_span, each, mapped)

    def cached(self, entry: FtwTensor | FtwBank) -> CachedFile | None:
        """The mapping that a tensor or bank lies in, at its offset; None where it must be read."""
        return self._cached[entry.shard]

    def read(self, entry: FtwTensor | FtwBank, into: memoryview) -> None:
        """Fill the first entry.bytes of `into` with a tensor or bank.

        Where `into` starts on a 4096-byte boundary and has room for the padding (bytes rounded up
        to 4096), what the page cache does not hold is read past it, and the padding is overwritten
        too.
        Raises: FormatError if the file ends early or is damaged, ValueError if `into` is too short.
        """
        view = into.cast("B")
        if len(view) < entry.bytes:
            raise ValueError(f"{entry.name} needs {entry.bytes} bytes, got {len(view)}")
        padded = -(-entry.bytes // ALIGN_BYTES) * ALIGN_BYTES
        aligned = len(view) >= padded and _is_aligned(view)
        wanted = view[:padded] if aligned else view[: entry.bytes]
        end = entry.offset + entry.bytes

        def read(span: tuple[int, int]) -> None:
            start, stop = span
            piece = wanted[start - entry.offset : stop - entry.offset]
            filled = self._read(entry.shard, piece, start, end - start, aligned)
            if self._blocks is not None:
                self._blocks.saw(entry.shard, start, filled)

        spans = list(_block_spans(entry.offset, entry.offset + len(wanted)))
        if len(spans) == 1:
            read(spans[0])
        else:
            for _ in self._readers.map(read, spans):
                pass

    def check_rest(self) -> None:
        """Check what no read covered, where the model was opened with "reading".

        Raises: FormatError naming the file and the block.
        """
        if self._checking is not None:
            self._checking.result()
        if self._blocks is not None:
            self._blocks.check_rest(self._read_span, self._readers.map)

    def _read_span(self, shard: int, start: int, end: int) -> memoryview:
        if self._closed:
            raise FormatError(f"{self.path} was closed while it was checked")
        cached = self._cached[shard]
        if cached is not None:
            return cached.span(start, end)
        data = memoryview(bytearray(end - start))
        if not self._fill(self._plain[shard], data, start):
            raise FormatError(f"{self.path / self.index.shards[shard].file} ends early")
        return data

    def _read(
        self, shard: int, view: memoryview, offset: int, needed: int, aligned: bool
    ) -> memoryview:
        """Fill `view` from `offset` on, `needed` bytes at least. Returns what was filled."""
        direct = self._direct[shard]
        if direct is not None and aligned:
            if self._fill(direct, view, offset, self._plain[shard]):
                return view
            self._direct[shard] = None
        view = view[:needed]
        if not self._fill(self._plain[shard], view, offset):
            raise FormatError(f"{self.path / self.index.shards[shard].file} ends early")
        return view

    def _fill(
        self, reader: IO[bytes], view: memoryview, offset: int, cache: IO[bytes] | None = None
    ) -> bool:
        """cache: the same file, asked first for what is in memory."""
        done = 0
        while done < len(view):
            piece = view[done : done + (64 << 20)]
            done += 0 if cache is None else _read_cached(cache, piece, offset + done)
            piece = view[done : done + (64 << 20)]
            if not piece:
                continue
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
        """Close the files; may be called twice. Mappings last as long as what uses them."""
        self._closed = True
        self._checker.shutdown()
        self._readers.shutdown()
        self._cached = [None] * len(self._cached)
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


def _block_spans(start: int, end: int) -> Iterator[tuple[int, int]]:
    """[start, end) cut where blocks of the file begin."""
    while start < end:
        stop = min((start // BLOCK_BYTES + 1) * BLOCK_BYTES, end)
        yield start, stop
        start = stop


def _read_cached(reader: IO[bytes], piece: memoryview, offset: int) -> int:
    """Bytes that the page cache had of it, whole pages only."""
    if not _CACHED_ONLY:
        return 0
    try:
        count = os.preadv(reader.fileno(), [piece], offset, _CACHED_ONLY)
    except OSError:  # nothing of it, or a file system that cannot tell
        return 0
    return count // ALIGN_BYTES * ALIGN_BYTES


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

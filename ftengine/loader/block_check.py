"""Checksums of a model's blocks while it is being read: what was hashed is what will be used.

Blocks that a read does not cover whole are read again at the end; big tensors and banks cover most.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Protocol

import xxhash

from ftengine.errors import FormatError
from ftengine.protocol import CHECKSUM_WRONG


class Shard(Protocol):
    """What is needed of a weight file's entry in the index. Units: bytes."""

    @property
    def file(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def blocks(self) -> tuple[str, ...]: ...


class BlockCheck:
    """Which blocks of a model have not been seen yet. block_bytes: the size of a whole block."""

    def __init__(self, where: str, shards: Sequence[Shard], block_bytes: int) -> None:
        self._where = where
        self._shards = shards
        self._block_bytes = block_bytes
        self._unseen = {
            (shard, block)
            for shard, entry in enumerate(shards)
            for block in range(len(entry.blocks))
        }

    def saw(self, shard: int, offset: int, data: memoryview) -> None:
        """Check the blocks that lie whole in what was read. Units: offset in bytes.

        Raises: FormatError naming the file and the block.
        """
        first, last = -(-offset // self._block_bytes), len(self._shards[shard].blocks)
        for block in range(first, last):
            start, end = self._span(shard, block)
            if end > offset + len(data):
                return
            if (shard, block) in self._unseen:
                self._compare(shard, block, data[start - offset : end - offset])

    def check_rest(
        self,
        read: Callable[[int, int, int], memoryview],
        each: Callable[..., Iterable[Any]] = map,
        shards: Container[int] | None = None,
    ) -> None:
        """Read and check what no read covered. read: shard, start, end -> bytes; each: as map.

        shards: those alone, None = all.
        Raises: FormatError naming the file and the block.
        """

        def check(place: tuple[int, int]) -> None:
            shard, block = place
            self._compare(shard, block, read(shard, *self._span(shard, block)))

        wanted = sorted(self._unseen)
        for _ in each(check, [item for item in wanted if shards is None or item[0] in shards]):
            pass

    def _span(self, shard: int, block: int) -> tuple[int, int]:
        start = block * self._block_bytes
        return start, min(start + self._block_bytes, self._shards[shard].bytes)

    def _compare(self, shard: int, block: int, data: memoryview) -> None:
        entry = self._shards[shard]
        if xxhash.xxh3_128_hexdigest(data) != entry.blocks[block]:
            raise wrong_checksum(f"{self._where}/{entry.file}", block)
        self._unseen.discard((shard, block))


def wrong_checksum(path: str, block: int) -> FormatError:
    """The error for a damaged file. block -1: a small file that has none."""
    place = "" if block < 0 else f" (block {block} of 16 MiB)"
    return FormatError(
        f"{path} is damaged{place}: {CHECKSUM_WRONG}; pull the model again to repair it"
    )

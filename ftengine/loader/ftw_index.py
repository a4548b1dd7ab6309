"""index.json of an FTW folder (docs/ftw.md): the records, and the check of a hostile text.

No torch, no numpy. Reading weights is ftw.py's business.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftengine.errors import FormatError
from ftengine.loader.stored import FACTORED, SCALE_BYTES, SCALE_FORMATS

VERSION = 1
ALIGN_BYTES = 4096
BLOCK_BYTES = 16 << 20
SHARD_BYTES = 8 << 30
INDEX_LIMIT_BYTES = 64 << 20
INDEX_NAME = "index.json"
PLAIN_FORMATS = (
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q4_k",
    "q5_k",
    "q6_k",
    "mxfp4_gguf",
    "i32",
    "i64",
)
"""Formats whose rows hold all that is needed to read them."""
_COUNT_LIMIT = 1 << 20
_SIZE_LIMIT = 1 << 56


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
    """A dense tensor: `bytes` bytes at `offset` of a shard, rows as in the checkpoint.

    scales and factor name the tensors that turn its codes into values; empty for formats that
    hold their own scales.
    """

    name: str
    shard: int
    offset: int
    bytes: int
    shape: tuple[int, ...]
    format: str
    scales: str = ""
    factor: str = ""


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

    @property
    def first(self) -> FtwPart:
        """The part that rows begin with: gate and up, or up alone."""
        return min(self.parts, key=lambda part: part.offset)

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


def parse_index(data: bytes, where: str) -> FtwIndex:
    """Parse and check index.json. Raises: FormatError naming `where` and the entry."""
    value = parse_object(data, where)
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
    _check_scales(index, where)
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
            self.format(value, (*PLAIN_FORMATS, *SCALE_FORMATS, *SCALE_BYTES)),
            self.text(value, "scales") if "scales" in value else "",
            self.text(value, "factor") if "factor" in value else "",
        )

    def format(self, value: dict[str, Any], known: tuple[str, ...]) -> str:
        found = self.text(value, "format")
        if found not in known:
            raise self.fail(
                f"{self.text(value, 'name')} has format {found!r}, which this engine does not "
                "know; update it, or pull the model again"
            )
        return found

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
            self.format(value, (*PLAIN_FORMATS, *SCALE_FORMATS)),
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


def _check_scales(index: FtwIndex, where: str) -> None:
    formats = {item.name: item.format for item in index.tensors}
    for item in index.tensors:
        wanted = SCALE_FORMATS.get(item.format, ("",))
        if formats.get(item.scales, item.scales) not in wanted:
            raise FormatError(f"{where}: {item.name} of format {item.format} has wrong scales")
        factor = "f32" if item.format in FACTORED else ""
        if formats.get(item.factor, item.factor) != factor:
            raise FormatError(f"{where}: {item.name} of format {item.format} has a wrong factor")


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


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object of bounded size. Raises: FormatError naming `where`."""
    if len(data) > INDEX_LIMIT_BYTES:
        raise FormatError(f"{where} is larger than {INDEX_LIMIT_BYTES} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where} must hold a JSON object")
    return value

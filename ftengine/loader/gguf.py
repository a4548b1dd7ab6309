"""Header of a GGUF file: key-values and tensor table. No torch, no numpy, bounded.

    "GGUF" | u32 version | u64 tensors | u64 key-values | key-values | tensor infos | pad | data

All integers little endian. A string is u64 length + UTF-8. An info is name, u32 dims, u64 sizes
(fastest first), u32 type, u64 offset from the start of data.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftengine.errors import FormatError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_LIMIT_BYTES = 64 << 20
FIRST_READ_BYTES = 4 << 20
Fetch = Callable[[int, int], bytes]
"""(start, end) -> those bytes of the file."""

_COUNT_LIMIT = 1 << 20
_DIMS_LIMIT = 4
_NAME_LIMIT = 256
_STRING, _ARRAY = 8, 9
_U64 = struct.Struct("<Q")
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
}
"""GGML type id -> (name, elements of a block, bytes of a block)."""


@dataclass(frozen=True)
class GgufTensor:
    """One tensor. Shape: slowest dimension first. Units: start, end in bytes of the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    start: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """A checked header; tensors in file order. Units: header_bytes is where data starts."""

    version: int
    values: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    header_bytes: int


class _Short(Exception):
    """The bytes at hand end before the header does."""


def read_header(fetch: Fetch, file_bytes: int, where: str) -> GgufHeader:
    """Read and check a header, fetching more as needed. Raises: FormatError naming the place."""
    size = min(file_bytes, FIRST_READ_BYTES)
    limit = min(file_bytes, HEADER_LIMIT_BYTES)
    while True:
        try:
            return _Parser(fetch(0, size), limit, file_bytes, where).header()
        except _Short:
            if size >= limit:
                raise FormatError(
                    f"{where}: the header does not end within {limit} bytes; the file is cut or "
                    "not a usable GGUF file"
                ) from None
            size = min(limit, size * 4)


class _Parser:
    """Walks the header once. Counts are checked against the bytes they must at least take."""

    def __init__(self, data: bytes, limit: int, file_bytes: int, where: str):
        self.data = data
        self.limit = limit
        self.file_bytes = file_bytes
        self.where = where
        self.at = 0

    def fail(self, what: str) -> FormatError:
        return FormatError(f"{self.where}: {what} (at byte {self.at})")

    def header(self) -> GgufHeader:
        if self.data[:4] != MAGIC:
            raise self.fail("this is not a GGUF file: it does not start with 'GGUF'")
        self.at = 4
        version = self.scalar("I")
        if version not in VERSIONS:
            hint = (
                "big-endian files are not built; " if version in (1 << 24, 2 << 24, 3 << 24) else ""
            )
            raise self.fail(f"GGUF version {version} is not supported; {hint}built: 2, 3")
        num_tensors = self.count(8 + 4 + 8 + 4 + 8)
        num_values = self.count(8 + 4 + 1)
        values: dict[str, Any] = {}
        for _ in range(num_values):
            key = self.text(1 << 16)
            if key in values:
                raise self.fail(f"key {key[:80]!r} is listed twice")
            values[key] = self.value(self.scalar("I"))
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment % 8:
            raise self.fail(f"general.alignment {alignment!r} is not usable")
        infos = [self.info() for _ in range(num_tensors)]
        data_start = -(-self.at // alignment) * alignment
        tensors = [self.tensor(info, data_start, alignment) for info in infos]
        self.check_order(tensors)
        ordered = tuple(sorted(tensors, key=lambda tensor: tensor.start))
        return GgufHeader(version, values, ordered, data_start)

    def take(self, size: int) -> int:
        """Move on by `size` bytes; returns where they start."""
        start = self.at
        if size > self.limit - start:
            raise self.fail(f"a length of {size} bytes runs past the header's limit {self.limit}")
        if start + size > len(self.data):
            raise _Short
        self.at = start + size
        return start

    def scalar(self, code: str) -> Any:
        start = self.take(struct.calcsize("<" + code))
        return struct.unpack_from("<" + code, self.data, start)[0]

    def count(self, item_bytes: int) -> int:
        number: int = self.scalar("Q")
        if number > _COUNT_LIMIT or number * item_bytes > self.limit:
            raise self.fail(f"a count of {number} entries does not fit the file")
        return number

    def text(self, limit: int = HEADER_LIMIT_BYTES) -> str:
        length: int = self.scalar("Q")
        if length > limit:
            raise self.fail(f"a text of {length} bytes is above the limit {limit}")
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8", errors="surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise self.fail(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind: int = self.scalar("I")
        length: int = self.scalar("Q")
        if kind == _STRING:
            if length * 8 > self.limit - self.at:
                raise self.fail(f"an array of {length} texts does not fit the file")
            return self.texts(length)
        if kind not in _SCALARS:
            raise self.fail(f"arrays of value type {kind} are not supported")
        item = struct.calcsize("<" + _SCALARS[kind])
        start = self.take(length * item)
        return list(struct.unpack_from(f"<{length}{_SCALARS[kind]}", self.data, start))

    def texts(self, count: int) -> list[str]:
        """Many strings; half of the header's time, so without a call per string."""
        data, at, limit, unpack = self.data, self.at, self.limit, _U64.unpack_from
        found = []
        for _ in range(count):
            if at + 8 > len(data):
                raise _Short
            end = at + 8 + unpack(data, at)[0]
            if end > len(data):
                self.at = at
                if end > limit:
                    raise self.fail(f"a text runs past the header's limit {limit}")
                raise _Short
            found.append(data[at + 8 : end].decode("utf-8", "surrogateescape"))
            at = end
        self.at = at
        return found

    def info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text(_NAME_LIMIT)
        num_dims = self.scalar("I")
        if not 1 <= num_dims <= _DIMS_LIMIT:
            raise self.fail(f"tensor {name!r} has {num_dims} dimensions, not 1 to {_DIMS_LIMIT}")
        shape = tuple(self.scalar("Q") for _ in range(num_dims))[::-1]
        if not all(0 < size < 1 << 40 for size in shape):
            raise self.fail(f"tensor {name!r} has a size that is 0 or too large")
        return name, shape, self.scalar("I"), self.scalar("Q")

    def tensor(
        self, info: tuple[str, tuple[int, ...], int, int], data_start: int, alignment: int
    ) -> GgufTensor:
        name, shape, type_id, offset = info
        if type_id not in GGML_TYPES:
            raise self.fail(f"tensor {name!r} has an unknown GGML type {type_id}")
        type_name, elements, block = GGML_TYPES[type_id]
        if shape[-1] % elements:
            raise self.fail(f"tensor {name!r}: {shape[-1]} is no multiple of {elements}")
        size = shape[-1] // elements * block
        for dimension in shape[:-1]:
            size *= dimension
        start = data_start + offset
        if offset % alignment or start + size > self.file_bytes:
            raise self.fail(
                f"tensor {name!r} ends at byte {start + size} of {self.file_bytes} or is "
                "misaligned; the file is cut or damaged"
            )
        return GgufTensor(name, shape, type_id, type_name, start, start + size)

    def check_order(self, tensors: list[GgufTensor]) -> None:
        names = {tensor.name for tensor in tensors}
        if len(names) != len(tensors):
            raise self.fail("a tensor name is listed twice")
        ordered = sorted(tensors, key=lambda tensor: tensor.start)
        for first, second in itertools.pairwise(ordered):
            if second.start < first.end:
                raise self.fail(f"tensor {second.name!r} overlaps {first.name!r}")

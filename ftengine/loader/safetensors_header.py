"""Header of a safetensors file: names, dtypes, shapes, byte ranges. No torch, bounded.

u64 little endian n | n bytes of JSON {name: {dtype, shape, data_offsets}} | tensor data
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftengine.errors import FormatError

HEADER_LIMIT_BYTES = 64 << 20
FIRST_READ_BYTES = 1 << 16
Fetch = Callable[[int, int], bytes]
"""(start, end) -> those bytes of the file."""

_ITEM_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}
_DIMS_LIMIT = 8
_COUNT_LIMIT = 1 << 20


@dataclass(frozen=True)
class SafetensorsTensor:
    """One tensor. Units: start and end are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """A checked header; tensors in file order. Units: header_bytes is where data starts."""

    tensors: tuple[SafetensorsTensor, ...]
    header_bytes: int


def read_header(fetch: Fetch, file_bytes: int, where: str) -> SafetensorsHeader:
    """Read and check a header. Raises: FormatError naming `where` and the tensor."""
    if file_bytes < 8:
        raise FormatError(f"{where} has {file_bytes} bytes, too short for a safetensors file")
    first = fetch(0, min(file_bytes, FIRST_READ_BYTES))
    (length,) = struct.unpack_from("<Q", first)
    if length > HEADER_LIMIT_BYTES or 8 + length > file_bytes:
        raise FormatError(
            f"{where}: the header length {length} is above the limit {HEADER_LIMIT_BYTES} or the "
            f"file size {file_bytes}; is it a complete safetensors file?"
        )
    data_start = 8 + length
    text = first[8:data_start] if data_start <= len(first) else fetch(8, data_start)
    return _parse(text, data_start, file_bytes, where)


def _parse(text: bytes, data_start: int, file_bytes: int, where: str) -> SafetensorsHeader:
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: the header is not valid JSON: {error}") from None
    if not isinstance(value, dict) or len(value) > _COUNT_LIMIT:
        raise FormatError(f"{where}: the header must be an object of at most {_COUNT_LIMIT} names")
    tensors = [
        _tensor(name, item, data_start, where)
        for name, item in value.items()
        if name != "__metadata__"
    ]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    last_end, last_name = data_start, "the header"
    for tensor in tensors:
        if tensor.start < last_end:
            raise FormatError(f"{where}: {tensor.name[:200]} overlaps {last_name[:200]}")
        if tensor.end > file_bytes:
            raise FormatError(
                f"{where}: {tensor.name[:200]} ends at byte {tensor.end}, the file at {file_bytes}"
            )
        last_end, last_name = tensor.end, tensor.name
    if last_end < file_bytes:
        raise FormatError(
            f"{where}: {file_bytes - last_end} bytes stand behind its last tensor, "
            f"{last_name[:200]}; it is no safetensors file as its writer made it"
        )
    return SafetensorsHeader(tuple(tensors), data_start)


def _tensor(name: str, item: Any, data_start: int, where: str) -> SafetensorsTensor:
    place = f"{where}: tensor {name[:200]!r}"
    if not isinstance(item, dict):
        raise FormatError(f"{place} is not an object")
    dtype = item.get("dtype")
    shape: Any = item.get("shape")
    offsets: Any = item.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _ITEM_BITS:
        raise FormatError(f"{place} has an unknown dtype {str(dtype)[:40]!r}")
    if not _is_sizes(shape) or len(shape) > _DIMS_LIMIT:
        raise FormatError(f"{place} has a shape that is not a list of at most {_DIMS_LIMIT} sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{place} has no usable data_offsets")
    bits = _ITEM_BITS[dtype]
    for size in shape:
        bits *= size
    if bits != 8 * (offsets[1] - offsets[0]):
        raise FormatError(
            f"{place} is {dtype} {shape}, but its data_offsets hold {offsets[1] - offsets[0]} bytes"
        )
    start, end = offsets
    return SafetensorsTensor(name, dtype, tuple(shape), data_start + start, data_start + end)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 60 for v in value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is listed twice")
    return found

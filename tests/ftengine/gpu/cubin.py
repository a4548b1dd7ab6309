"""What a cubin says of its kernels' parameters: section .nv.info.NAME of the ELF file.

Attribute 0x17 (KPARAM_INFO) holds 12 bytes per parameter: index u32, ordinal u16, offset u16, and
a word whose top 14 bits are the size. Source: seen in the output of ptxas and cuobjdump -elf.
"""

from __future__ import annotations

import struct

_PARAMETER = 0x17
_HAS_SIZE = 4


def parameter_sizes(image: bytes, kernel: str) -> list[int]:
    """Bytes of each parameter in order."""
    found: dict[int, int] = {}
    data = sections(image)[f".nv.info.{kernel}"]
    at = 0
    while at + 4 <= len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind != _HAS_SIZE:
            continue
        if attribute == _PARAMETER:
            _, ordinal, _, word = struct.unpack_from("<IHHI", data, at)
            found[ordinal] = word >> 18
        at += value
    return [found[ordinal] for ordinal in sorted(found)]


def sections(image: bytes) -> dict[str, bytes]:
    """Sections of a 64-bit little-endian ELF file by name."""
    (start,) = struct.unpack_from("<Q", image, 40)
    entry, count, names = struct.unpack_from("<HHH", image, 58)
    heads = [struct.unpack_from("<IIQQQQ", image, start + i * entry) for i in range(count)]
    text = _contents(image, heads[names])
    return {
        text[head[0] : text.index(b"\0", head[0])].decode(): _contents(image, head)
        for head in heads
        if head[1] != 8  # no bytes in the file
    }


def _contents(image: bytes, head: tuple[int, ...]) -> bytes:
    return image[head[4] : head[4] + head[5]]

"""Content-Encoding of request bodies, undone as they arrive: gzip, deflate and zstd, bomb-safe.

However small a chunk is, what comes out of it is counted while it comes out; a body above its limit
is refused before the rest of it exists anywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from ftman.gateway.body import FieldError, too_large

PIECE_BYTES = 1 << 20
ZSTD_WINDOW_BYTES = 8 << 20
"""Largest zstd window taken. Source: RFC 9659, which sets this bound for HTTP."""
_ZSTD_SLICE_BYTES = 256
"""A block of 128 KiB may be 4 bytes long, and a fed slice is decoded whole: 8 MiB at most."""


class _Stream(Protocol):
    """One member or frame of a compressed body."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What comes out of the next bytes.   Raises: ValueError on bytes that are no such data."""

    @property
    def is_complete(self) -> bool:
        """True once its own end was seen."""

    @property
    def rest(self) -> bytes:
        """Bytes after its end."""


class Decoder:
    """Undoes one Content-Encoding within a limit on the decoded size. Units: bytes.

    Feed every chunk, then call `finish`. "" and "identity" pass bytes through.
    Raises: FieldError 415 for an unknown coding.
    """

    def __init__(self, coding: str, limit: int):
        self._coding = coding.strip().lower()
        self._make = _maker(self._coding)
        self._limit = limit
        self._taken = 0
        self._count = 0
        self._stream: _Stream | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The decoded pieces of the next chunk.

        Raises: FieldError 413 above the limit, 400 for bytes that are not in this coding.
        """
        # Empty blocks may go on for ever without a byte coming out.
        self._taken += len(data)
        if self._taken > self._limit:
            raise too_large(self._limit)
        if self._make is None:
            yield self._counted(data)
            return
        while data:
            if self._stream is None:
                self._stream = self._make(data)
            try:
                for piece in self._stream.pieces(data):
                    yield self._counted(piece)
            except ValueError as error:
                raise self._broken(str(error)) from None
            data = b""
            if self._stream.is_complete:
                data, self._stream = self._stream.rest, None

    def finish(self) -> None:
        """The body has ended.   Raises: FieldError 400 if it was cut off."""
        if self._stream is not None:
            raise self._broken("it ends too early")

    def _counted(self, piece: bytes) -> bytes:
        self._count += len(piece)
        if self._count > self._limit:
            raise too_large(self._limit)
        return piece

    def _broken(self, reason: str) -> FieldError:
        return FieldError(f"the body is not valid {self._coding} data: {reason}")


def _maker(coding: str) -> Callable[[bytes], _Stream] | None:
    makers: dict[str, Callable[[bytes], _Stream] | None] = {
        "": None,
        "identity": None,
        "gzip": lambda first: _Zlib(zlib.MAX_WBITS | 16),
        "x-gzip": lambda first: _Zlib(zlib.MAX_WBITS | 16),
        "deflate": lambda first: _Zlib(zlib.MAX_WBITS if _has_zlib_header(first) else -15),
        "zstd": lambda first: _Zstd(),
    }
    if coding not in makers:
        raise FieldError(
            f"content encoding {coding[:40]!r} is not supported; use zstd, gzip, deflate or none",
            status=415,
        )
    return makers[coding]


def _has_zlib_header(first: bytes) -> bool:
    """Some clients send bare deflate data under that name."""
    if len(first) < 2:
        return first[:1] == b"\x78"
    return first[0] & 15 == 8 and int.from_bytes(first[:2], "big") % 31 == 0


class _Zlib:
    def __init__(self, window_bits: int):
        self._inflater = zlib.decompressobj(window_bits)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            while data and not self._inflater.eof:
                yield self._inflater.decompress(data, PIECE_BYTES)
                data = self._inflater.unconsumed_tail
        except zlib.error as error:
            raise ValueError(str(error)) from None

    @property
    def is_complete(self) -> bool:
        return self._inflater.eof

    @property
    def rest(self) -> bytes:
        return self._inflater.unused_data


class _Zstd:
    def __init__(self) -> None:
        # Imported here: few clients send it, and it costs memory that all others would pay.
        import zstandard

        self._error: type[Exception] = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
        self._frame = decompressor.decompressobj()
        self.is_complete = False
        self.rest = b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            end = start + _ZSTD_SLICE_BYTES
            try:
                yield self._frame.decompress(data[start:end])
            except self._error as error:
                raise ValueError(str(error)) from None
            if self._frame.eof:
                self.is_complete = True
                self.rest = self._frame.unused_data + data[end:]
                return

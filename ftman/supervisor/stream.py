"""One streamed HTTP/1.1 exchange with an engine, made for a line per token.

A general client costs several times what decoding a token costs. Here: one connection per request,
its reply read as it comes, chunks undone, lines cut. What the lines mean is client.py's business.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from ftengine.protocol import LINE_LIMIT_BYTES, ProtocolError
from ftman.waits import result_within

HEAD_LIMIT_BYTES = 64 << 10
READ_BYTES = 64 << 10
_CHUNK_HEAD_LIMIT = 64


@dataclass(frozen=True)
class Address:
    """Where an engine listens: a unix socket's path, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read "unix:PATH" or "tcp:HOST:PORT"."""
        kind, _, place = text.partition(":")
        if kind == "unix":
            return cls(path=place)
        host, _, port = place.rpartition(":")
        return cls(host=host, port=int(port))

    async def connect(self, timeout_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.   Raises: OSError, also when it takes too long."""
        opening = asyncio.ensure_future(
            asyncio.open_unix_connection(self.path, limit=HEAD_LIMIT_BYTES)
            if self.path
            else asyncio.open_connection(self.host, self.port, limit=HEAD_LIMIT_BYTES)
        )
        try:
            return await result_within(opening, timeout_s)
        except asyncio.TimeoutError:
            raise ConnectionError(f"no connection within {timeout_s:.0f} s") from None
        except asyncio.CancelledError:
            if not opening.cancelled() and opening.exception() is None:  # it came too late
                opening.result()[1].transport.abort()
            raise


class Chunks:
    """Undoes HTTP's chunked coding. done: the last chunk was read."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The content in these bytes.   Raises: ProtocolError."""
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        content = []
        while at < size and not self.done:
            if self._left > 2:
                piece = data[at : at + self._left - 2]
                content.append(piece)
                at += len(piece)
                self._left -= len(piece)
            elif self._left:  # the line end behind a chunk
                step = min(self._left, size - at)
                at += step
                self._left -= step
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    break
                self._left = _length(data[at:end]) + 2
                self.done = self._left == 2
                at = end + 2
        self._rest = data[at:]
        if not self._left and len(self._rest) > _CHUNK_HEAD_LIMIT and not self.done:
            raise ProtocolError("the reply's chunks are malformed")
        return content[0] if len(content) == 1 else b"".join(content)


def _length(text: bytes) -> int:
    digits = text.partition(b";")[0].strip()
    if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
        raise ProtocolError("the reply's chunks are malformed")
    return int(digits, 16)


@dataclass
class Reply:
    """The head of a reply and the stream behind it. length None: chunked."""

    status: int
    length: int | None
    _reader: asyncio.StreamReader

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes; ends where it is complete, or where the connection ended."""
        chunks = Chunks() if self.length is None else None
        left = self.length or 0
        while (not chunks.done) if chunks else left > 0:
            data = await self._reader.read(READ_BYTES)
            if not data:
                return
            if chunks is None:
                left -= len(data)
                yield data
            elif content := chunks.feed(data):
                yield content

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The body cut into lines.   Raises: ProtocolError for one too long or cut off."""
        rest = bytearray()
        async for piece in self.pieces():
            *lines, tail = piece.split(b"\n")
            if lines:
                lines[0] = bytes(rest) + lines[0]
                rest.clear()
            rest += tail
            for line in lines:
                if line:
                    yield line
            if len(rest) > LINE_LIMIT_BYTES:
                raise ProtocolError(f"a line is longer than {LINE_LIMIT_BYTES} bytes")
        if rest:
            raise ProtocolError("the last line is cut off")

    async def body(self, limit_bytes: int) -> bytes:
        """The whole body.   Raises: ProtocolError above the limit."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > limit_bytes:
                raise ProtocolError(f"an answer is longer than {limit_bytes} bytes")
        return bytes(body)


@contextlib.asynccontextmanager
async def post(
    address: Address, token: str, path: str, body: bytes, connect_timeout_s: float
) -> AsyncIterator[Reply]:
    """Send one request; leaving the block closes the connection, which aborts the work.

    Raises: OSError when the connection fails, ProtocolError when the answer is no HTTP.
    """
    reader, writer = await address.connect(connect_timeout_s)
    try:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: engine\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        yield await _reply(reader)
    finally:
        writer.transport.abort()


async def _reply(reader: asyncio.StreamReader) -> Reply:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ProtocolError("the reply's head is cut off") from None
        raise ConnectionError("it was closed before an answer") from None
    except asyncio.LimitOverrunError:
        raise ProtocolError("the reply's head is too long") from None
    first, *fields = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ProtocolError("the reply is not HTTP")
    headers = dict(_header(field) for field in fields if field)
    length = headers.get("content-length", "")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Reply(int(words[1]), None, reader)
    if not length.isdigit():
        raise ProtocolError("the reply has no length")
    return Reply(int(words[1]), int(length), reader)


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()

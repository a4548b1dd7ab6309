"""Engine replies: whole whatever the cuts, and one clear error for what is no HTTP."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import Any
from unittest.mock import Mock

import pytest

from ftengine.protocol import ProtocolError
from ftman.supervisor.stream import Address, Chunks, post

LINES = [b'{"a":1}', b"x" * 300, b"", b"last"]
BODY = b"\n".join(LINES) + b"\n"


def chunked(body: bytes, rng: random.Random) -> bytes:
    """A body in chunks of random sizes, some with extensions."""
    data = b""
    while body:
        size = rng.randint(1, 200)
        piece, body = body[:size], body[size:]
        data += f"{len(piece):x}".encode() + rng.choice([b"", b";a=b"]) + b"\r\n" + piece + b"\r\n"
    return data + b"0\r\n\r\n"


@pytest.mark.parametrize("seed", range(20))
def test_chunks_come_out_whole_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    data = chunked(BODY, rng)
    chunks, body = Chunks(), b""
    step = seed + 1
    for at in range(0, len(data), step):
        assert not chunks.done or at > len(data) - 5
        body += chunks.feed(data[at : at + step])
    assert body == BODY
    assert chunks.done


@pytest.mark.parametrize("data", [b"zz\r\n", b"\r\n", b"-1\r\n", b"fffffffff\r\n", b"1" * 100])
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        Chunks().feed(data)


def lines_of(answer: bytes) -> list[bytes]:
    """What a client reads from a server that sends these bytes and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Authorization: Bearer secret" in head
        assert await reader.readexactly(4) == b"body"
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> list[bytes]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = Address.parse(f"tcp:127.0.0.1:{port}")
        async with (
            server,
            post(address, "secret", "/x", b"body", 5) as reply,
            aclosing(reply.lines()) as lines,
        ):
            return [line async for line in lines]

    return asyncio.run(main())


def test_lines_come_from_chunks_and_from_a_length() -> None:
    full = [line for line in LINES if line]
    head = b"HTTP/1.1 200 OK\r\n"
    chunks = chunked(BODY, random.Random(1))
    assert lines_of(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks) == full
    assert lines_of(head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY) == full


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"nonsense\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "cut off"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "cut off"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, "too long"),
    ],
)
def test_broken_replies_are_named(answer: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        lines_of(answer)


def test_an_engine_that_is_not_there_is_an_os_error() -> None:
    async def main() -> None:
        async with post(Address.parse("unix:/nonexistent/engine.sock"), "t", "/x", b"", 1):
            pass

    with pytest.raises(OSError):
        asyncio.run(main())
    with pytest.raises(ConnectionError):
        lines_of(b"")


def test_a_connection_that_comes_with_the_cancellation_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        there: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def opens(*_: object, **__: object) -> Any:
            return await there

        monkeypatch.setattr(asyncio, "open_connection", opens)
        caller = asyncio.ensure_future(Address.parse("tcp:127.0.0.1:1").connect(60))
        for _ in range(3):
            await asyncio.sleep(0)
        writer = Mock()
        there.set_result((None, writer))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        writer.transport.abort.assert_called_once_with()

    asyncio.run(main())

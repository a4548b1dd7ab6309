"""The pump: status before the first piece, signs of life, errors inside, nothing left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ftman.errors import BusyError, EngineDiedError, FtmanError
from ftman.gateway.routes import StreamReply
from ftman.gateway.stream import Pump, merge


class Client:
    """Collects what a pump sends."""

    def __init__(self) -> None:
        self.status = 0
        self.pieces: list[bytes] = []
        self.ended = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if message["body"]:
            self.pieces.append(message["body"])
        self.ended = not message["more_body"]


def pump_of(pieces: AsyncIterator[bytes], heartbeat_s: float = 5.0) -> Pump:
    reply = StreamReply(
        pieces, "text/x", lambda e: f"<{e.code}>".encode(), heartbeat=lambda: b"<life>"
    )
    return Pump(reply, heartbeat_s)


def run(pump: Pump) -> Client:
    client = Client()
    asyncio.run(pump.run(client.send, ()))
    return client


async def fail_at(number: int, error: Exception) -> AsyncIterator[bytes]:
    for index in range(number):
        yield b"%d" % index
    raise error


def test_an_error_before_the_first_piece_has_no_status_yet() -> None:
    client = Client()
    with pytest.raises(BusyError):
        asyncio.run(pump_of(fail_at(0, BusyError("full"))).run(client.send, ()))
    assert client.status == 0


def test_an_error_later_is_told_inside_and_the_stream_is_closed() -> None:
    client = run(pump_of(fail_at(2, EngineDiedError("gone"))))
    assert client.status == 200
    assert client.pieces == [b"01", b"<engine_died>"]
    assert client.ended


def test_pieces_made_while_a_send_is_under_way_go_out_together() -> None:
    async def five() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d" % number
            if number in (0, 3):
                await asyncio.sleep(0.005)

    class Slow(Client):
        async def send(self, message: dict[str, Any]) -> None:
            await super().send(message)
            await asyncio.sleep(0.001)

    async def main() -> Client:
        client = Slow()
        await pump_of(five()).run(client.send, ())
        return client

    assert asyncio.run(main()).pieces == [b"0", b"123", b"4"]


def test_a_reader_that_takes_nothing_stops_the_making() -> None:
    made = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"x" * 10_000

    async def main() -> None:
        blocked = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await blocked.wait()

        task = asyncio.ensure_future(pump_of(endless()).run(send, ()))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert 0 < made < 100


def test_an_unexpected_exception_is_told_as_internal() -> None:
    client = run(pump_of(fail_at(1, ZeroDivisionError())))
    assert client.pieces[-1] == b"<internal>"


def test_silence_is_broken_by_signs_of_life_and_the_error_then_travels_inside() -> None:
    async def slow() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.05)
        raise BusyError("full")
        yield b""

    client = run(pump_of(slow(), heartbeat_s=0.01))
    assert client.status == 200
    assert client.pieces[0] == b"<life>"
    assert client.pieces[-1] == b"<busy>"


def test_cut_ends_a_waiting_stream_with_its_error() -> None:
    closed = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def main() -> Client:
        pump, client = pump_of(endless()), Client()
        task = asyncio.ensure_future(pump.run(client.send, ()))
        await asyncio.sleep(0.01)
        pump.cut(BusyError("bye"))
        await task
        return client

    client = asyncio.run(main())
    assert client.pieces == [b"a", b"<busy>"]
    assert closed == [True]


def test_cancelling_closes_the_source_at_once() -> None:
    closed = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            closed.append(True)

    async def main() -> None:
        task = asyncio.ensure_future(pump_of(endless()).run(Client().send, ()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert closed == [True]


def test_merge_interleaves_and_one_failure_ends_all() -> None:
    closed: list[int] = []

    async def count(index: int, error: Exception | None) -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
                await asyncio.sleep(0)
            if error:
                raise error
            await asyncio.sleep(30)
        finally:
            closed.append(index)

    seen = []

    async def main() -> None:
        async for item in merge([count(0, None), count(1, BusyError("x"))]):
            seen.append(item)

    with pytest.raises(FtmanError):
        asyncio.run(main())
    assert {index for index, _ in seen} == {0, 1}
    assert sorted(closed) == [0, 1]

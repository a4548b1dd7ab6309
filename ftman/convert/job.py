"""Runs one converter child and feeds it bytes: `python -m ftengine.convert run` and `plan`.

Which bytes exist where is the Supply's business; what they become is the child's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ftman
from ftman.clock import SYSTEM
from ftman.config import engine_environment
from ftman.convert.messages import (
    ByteRange,
    ConvertPlan,
    ConvertResult,
    Have,
    RepairResult,
    encode,
    error_of,
    parse_line,
    parse_plan,
    parse_range,
    parse_repair,
    parse_result,
)
from ftman.errors import FtmanError
from ftman.waits import end_child, wait_within

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "ftengine.convert")
LINE_LIMIT_BYTES = 16 << 20
STOP_AFTER_S = 5.0
_TAIL_LINES = 30
_TAIL_LINE_BYTES = 2000
T = TypeVar("T")


class Supply(Protocol):
    """Brings source bytes to a local path, and takes back what is no longer needed."""

    def provide(self, wanted: ByteRange) -> AsyncIterator[Have]:
        """Make the range (or more) available, piece by piece; may take as long as a download."""

    async def release(self, done: ByteRange) -> None:
        """The child has these bytes durably in the FTW: they may be deleted here."""


OnProgress = Callable[[int, int], None]


class Spec(Protocol):
    """What a child is asked for: its first line, and the name that errors use."""

    @property
    def name(self) -> str:
        """The model's name."""

    def line(self) -> bytes:
        """The first line for the child."""


class ConvertChild:
    """One child process from its job line to its result. Use once."""

    def __init__(self, spec: Spec, supply: Supply, command: Sequence[str] = COMMAND):
        self._spec = spec
        self._supply = supply
        self._command = tuple(command)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._needs: asyncio.Queue[ByteRange] = asyncio.Queue()
        self._finished = False
        self._process: asyncio.subprocess.Process
        self._errors: asyncio.Future[None]

    async def run(self, on_progress: OnProgress) -> ConvertResult:
        """Convert.   Raises: FtmanError (the child's own error, or how it died)."""
        kind, body = await self._talk("run", ("result",), on_progress)
        return self._parsed(parse_result, kind, body)

    async def remake(self, on_progress: OnProgress) -> ConvertResult:
        """Make new weights of converted ones.   Raises: FtmanError, as `run`."""
        kind, body = await self._talk("remake", ("result",), on_progress)
        return self._parsed(parse_result, kind, body)

    async def repair(self, on_progress: OnProgress) -> RepairResult:
        """Make damaged stretches of a converted folder anew.   Raises: FtmanError."""
        kind, body = await self._talk("repair", ("repair",), on_progress)
        return self._parsed(parse_repair, kind, body)

    async def plan(self, *, any_family: bool = False) -> ConvertPlan:
        """Read headers only and say what converting would make.   Raises: FtmanError.

        any_family: what cannot be converted yet gets its sizes too; the plan then says why not.
        """
        verb = "outline" if any_family else "plan"
        kind, body = await self._talk(verb, ("plan",), lambda done, total: None)
        return self._parsed(parse_plan, kind, body)

    async def _talk(
        self, verb: str, ends: Sequence[str], on_progress: OnProgress
    ) -> tuple[str, Mapping[str, Any]]:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            verb,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT_BYTES,
            env=child_environment(),
            start_new_session=True,
        )
        reading = asyncio.ensure_future(self._read_lines(ends, on_progress))
        feeding = asyncio.ensure_future(self._feed())
        self._errors = asyncio.ensure_future(self._read_errors())
        try:
            await self._write(self._spec.line())
            await asyncio.wait({reading, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done() and not reading.done():
                feeding.result()
            answer = await reading
            self._finished = True
            return answer
        finally:
            feeding.cancel()
            reading.cancel()
            await self._stop()
            self._errors.cancel()
            await asyncio.gather(reading, feeding, self._errors, return_exceptions=True)

    async def _read_lines(
        self, ends: Sequence[str], on_progress: OnProgress
    ) -> tuple[str, Mapping[str, Any]]:
        stdout = self._process.stdout
        assert stdout is not None
        while True:
            try:
                line = await stdout.readline()
            except ValueError:
                raise self._broken("a line is too long") from None
            if not line.endswith(b"\n"):
                raise await self._died()
            try:
                kind, body = parse_line(line)
                if kind in ends:
                    return kind, body
                await self._handle(kind, body, on_progress)
            except (ValueError, KeyError, TypeError) as error:
                raise self._broken(str(error)) from None

    async def _handle(self, kind: str, body: Mapping[str, Any], on_progress: OnProgress) -> None:
        if kind == "need":
            self._needs.put_nowait(parse_range(body))
        elif kind == "done":
            await self._supply.release(parse_range(body))
        elif kind == "progress":
            on_progress(int(body.get("completed", 0)), int(body.get("total", 0)))
        elif kind == "error":
            raise error_of(body)
        else:
            log.warning("converter says %r, which is not known here", kind)

    async def _feed(self) -> None:
        while True:
            wanted = await self._needs.get()
            async for have in self._supply.provide(wanted):
                await self._write(have.line())

    async def _write(self, line: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        # A child that is gone is noticed, with its reason, where its output ends.
        with contextlib.suppress(ConnectionError):
            stdin.write(line)
            await stdin.drain()

    async def _read_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        rest = b""
        while chunk := await stderr.read(1 << 16):
            # A child's line may come in pieces; one that never ends is cut.
            *lines, rest = (rest + chunk).split(b"\n")
            self._note([*lines, rest[:_TAIL_LINE_BYTES]] if len(rest) > 1 << 16 else lines)
            rest = b"" if len(rest) > 1 << 16 else rest
        self._note([rest])

    def _note(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            text = printable_line(line)
            if text:
                log.debug("converter: %s", text)
                self._tail.append(text)

    async def _died(self) -> FtmanError:
        await wait_within(self._process.wait(), STOP_AFTER_S, SYSTEM)
        await asyncio.wait({self._errors}, timeout=STOP_AFTER_S)
        return FtmanError(
            f"converting {self._spec.name} stopped: the converter {self._ending()}: {self._last()}",
            hint="Run the same command again: it goes on where it stopped.",
            code="convert_died",
        )

    def _ending(self) -> str:
        status = self._process.returncode
        if status is not None and status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def _last(self) -> str:
        return self._tail[-1] if self._tail else "it left no message"

    def _broken(self, reason: str) -> FtmanError:
        return FtmanError(
            f"converting {self._spec.name} stopped: the converter broke its protocol: {reason}",
            code="convert_protocol",
        )

    def _parsed(self, parse: Callable[[Mapping[str, Any]], T], kind: str, body: Any) -> T:
        try:
            return parse(body)
        except (ValueError, KeyError, TypeError) as error:
            raise self._broken(f"{kind}: {error}") from None

    async def _stop(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        if self._process.returncode is None and not self._finished:
            stdin.write(encode({"cancel": True}))  # not drained: it may not read any more
        stdin.close()
        await end_child(self._process, STOP_AFTER_S)


def printable_line(line: bytes) -> str:
    """A line of a child's log, bounded, without control characters."""
    text = line[:_TAIL_LINE_BYTES].decode(errors="replace").strip()
    return "".join(ch for ch in text if ch.isprintable())


def child_environment() -> dict[str, str]:
    """The environment for converter children: they find the engine beside this package."""
    environment = engine_environment()
    root = str(Path(ftman.__file__).parent.parent)
    present = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{root}{os.pathsep}{present}" if present else root
    return environment

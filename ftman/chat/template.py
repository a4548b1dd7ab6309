"""Chat templates in Jinja, rendered by a helper process that cannot hang or bloat the manager.

The helper starts with the first render, is killed when one takes too long, starts again on demand
and ends after a minute without work. Its answer carries, for each character, whether the template
or a value wrote it (traced.py). Not here: the sandbox (sandbox.py) and the messages (render.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ftman.chat.traced import Traced
from ftman.clock import SYSTEM, Clock
from ftman.config import engine_environment
from ftman.errors import UsageError
from ftman.last_read import LastRead
from ftman.waits import result_within

log = logging.getLogger(__name__)

RENDER_LIMIT_S = 5.0
START_LIMIT_S = 20.0
IDLE_LIMIT_S = 60.0
_LINE_LIMIT_BYTES = 512 << 20
_ROOT = Path(__file__).parents[2]
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class TemplateRaisedError(UsageError):
    """The template refused the conversation in its own words (`raise_exception`)."""

    code = "template_refused"


class JinjaTemplates:
    """Renders chat templates in the helper process, one at a time. Close it when done."""

    def __init__(self, *, clock: Clock = SYSTEM, limit_s: float = RENDER_LIMIT_S):
        self._clock = clock
        self._limit_s = limit_s
        self._sources = LastRead()
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._idle: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the helper, None while there is none."""
        return self._process.pid if self._process is not None else None

    def source(self, path: Path) -> str:
        """The template in a file, also when its disk went away since.   Raises: OSError."""
        return self._sources.read_bytes(path).decode("utf-8", "replace")

    async def render(
        self, source: str, values: Mapping[str, Any], *, trusted: Mapping[str, str] | None = None
    ) -> Traced:
        """Render a template. Strings in `values` are values, those in `trusted` (the tokenizer's
        own token texts) count as template text.

        Raises: TemplateRaisedError with the template's words; UsageError on a broken template, or
        one that needs too much time, memory or output.
        """
        now = datetime.fromtimestamp(self._clock.wall()).isoformat()
        request = {"source": source, "values": values, "trusted": trusted or {}, "now": now}
        line = json.dumps(request, default=_plain).encode() + b"\n"
        async with self._lock:
            self._stop_idle_timer()
            answer = await self._ask(line)
            self._idle = asyncio.create_task(self._end_when_idle())
        return _text_of(answer)

    async def close(self) -> None:
        """End the helper; a later render starts it again."""
        async with self._lock:
            self._stop_idle_timer()
            await self._end()

    async def _ask(self, line: bytes) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._start()
        try:
            return await result_within(_exchange(process, line), self._limit_s)
        except asyncio.TimeoutError:
            await self._end()
            raise _limit_error(f"it took longer than {self._limit_s:g} s") from None
        except (EOFError, OSError, ValueError):
            await self._end()
            raise _limit_error("its helper process ended (memory or processor limit)") from None
        except BaseException:
            await self._end()
            raise

    async def _start(self) -> Process:
        environment = engine_environment()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ftman.chat.template_child",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            cwd=_ROOT,
            env={key: environment[key] for key in _KEPT_ENVIRONMENT if key in environment},
            limit=_LINE_LIMIT_BYTES,
        )
        self._process = process
        warm_up = {"source": "", "values": {}, "trusted": {}, "now": "2000-01-01T00:00:00"}
        try:
            await result_within(
                _exchange(process, json.dumps(warm_up).encode() + b"\n"), START_LIMIT_S
            )
        except (asyncio.TimeoutError, EOFError, OSError, ValueError):
            await self._end()
            raise UsageError(
                "the helper process for chat templates does not start",
                hint=f"Try `{sys.executable} -m ftman.chat.template_child` in {_ROOT}.",
                code="template_helper",
                status=500,
            ) from None
        except BaseException:
            await self._end()
            raise
        log.debug("template helper started, pid %s", process.pid)
        return process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await asyncio.shield(process.wait())

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    async def _end_when_idle(self) -> None:
        await self._clock.sleep(IDLE_LIMIT_S)
        async with self._lock:
            self._idle = None
            await self._end()


async def _exchange(process: Process, line: bytes) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    await process.stdin.drain()
    reply = await process.stdout.readline()
    if not reply.endswith(b"\n"):
        raise EOFError
    answer: dict[str, Any] = json.loads(reply)
    return answer


def _text_of(answer: Mapping[str, Any]) -> Traced:
    kind, message = answer.get("error"), answer.get("message", "")
    if kind == "raised":
        raise TemplateRaisedError(message or "the chat template refused the conversation")
    if kind == "limit":
        raise _limit_error(message)
    if kind is not None:
        raise UsageError(
            f"chat template error: {message}",
            hint="Set another TEMPLATE in a Modelfile, or report the model.",
            code="template_error",
        )
    return Traced(answer["text"], tuple((length, origin) for length, origin in answer["runs"]))


def _limit_error(why: str) -> UsageError:
    return UsageError(
        f"the chat template was stopped: {why}",
        hint="Send a shorter conversation, or set another TEMPLATE in a Modelfile.",
        code="template_limit",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a template value of type {type(value).__name__} cannot be passed on")

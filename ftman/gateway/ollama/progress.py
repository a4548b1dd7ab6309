"""Progress of long work as Ollama tells it: NDJSON lines, or only the last object."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.routes import Reply, StreamReply
from ftman.gateway.stream import NDJSON, ndjson
from ftman.pull.progress import Progress


async def progress_reply(steps: AsyncIterator[Progress], stream: bool) -> Reply | StreamReply:
    """The steps as a stream, or their last one as a whole answer.   Raises: FtmanError."""
    if stream:
        lines = _Lines(steps)
        return StreamReply(
            lines.pieces(),
            NDJSON,
            on_error=lambda error: encode_error(OLLAMA, error) + b"\n",
            heartbeat=lambda: lines.last,
        )
    last: dict[str, Any] = {}
    async with contextlib.aclosing(steps):  # type: ignore[type-var]
        async for step in steps:
            last = progress_value(step)
    return Reply(to_json(last), media_type="application/json")


class _Lines:
    """Progress as NDJSON; the last line is kept, to be said again as a sign of life."""

    def __init__(self, steps: AsyncIterator[Progress]):
        self._steps = steps
        self.last = b""

    async def pieces(self) -> AsyncIterator[bytes]:
        """The lines."""
        async with contextlib.aclosing(self._steps) as steps:  # type: ignore[type-var]
            async for step in steps:
                self.last = ndjson(progress_value(step))
                yield self.last


def progress_value(step: Progress) -> dict[str, Any]:
    """One progress object; zero numbers and empty texts are left out."""
    value: dict[str, Any] = {"status": step.status}
    if step.digest:
        value["digest"] = step.digest
    if step.total:
        value["total"] = step.total
    if step.completed:
        value["completed"] = step.completed
    return value

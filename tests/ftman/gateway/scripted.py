"""A gateway over a scripted service: events go in, bytes come out; no engine, no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import httpx

from ftman.chat.types import (
    ChatEvent,
    ChatRequest,
    Finish,
    Options,
    Prompt,
    TextDelta,
    Usage,
    Waiting,
)
from ftman.clock import SYSTEM
from ftman.errors import FtmanError, NotFoundError
from ftman.gateway.access import AccessRules
from ftman.gateway.app import Gateway
from ftman.service import Service

USED = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
HELLO: tuple[ChatEvent, ...] = (
    Waiting("load", 1, 2),
    Waiting("prefill", 5, 10),
    TextDelta("Hel"),
    TextDelta("lo"),
    Finish("stop", USED),
)


@dataclass
class ScriptedService:
    """What the gateway needs of a Service. `asked` are the requests it was given."""

    events: Sequence[ChatEvent | FtmanError | float] = HELLO
    own: Options = field(default_factory=Options)
    num_prompt_tokens: int = 10
    asked: list[ChatRequest] = field(default_factory=list)
    clock: Any = SYSTEM

    def __post_init__(self) -> None:
        self.tokens = self

    def find(self, name: str) -> Any:
        if name != "tiny":
            raise NotFoundError(f"model {name!r} not found")
        short = SimpleNamespace(short="tiny:latest", namespace="library")
        return SimpleNamespace(name=short, modified_wall_s=1e9)

    def own_options(self, model: Any) -> Options:
        return self.own

    def context_tokens(self, model: Any) -> int:
        return 512

    async def models(self) -> list[Any]:
        return [self.find("tiny")]

    async def prompt(self, request: ChatRequest) -> Prompt:
        self.asked.append(request)
        return Prompt((1,) * self.num_prompt_tokens, (), "")

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """The script: events are sent, numbers are seconds to wait, errors are raised."""
        self.asked.append(request)
        for item in self.events:
            if isinstance(item, float):
                await asyncio.sleep(item)
            elif isinstance(item, FtmanError):
                raise item
            else:
                yield item


def ask(
    service: ScriptedService,
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    rules: AccessRules | None = None,
    heartbeat_s: float = 5.0,
) -> httpx.Response:
    """One request to a gateway of its own."""
    gateway = Gateway(cast(Service, service), rules or AccessRules(), heartbeat_s=heartbeat_s)

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=cast(Any, gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            return await client.request(method, path, content=content, headers=headers)

    return asyncio.run(run())


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    """SSE frames with an event line; each must repeat its type in its data."""
    found = []
    assert reply.text.endswith("\n\n")
    for frame in reply.text[:-2].split("\n\n"):
        head, data = frame.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert head == f"event: {value['type']}"
        found.append(value)
    return found

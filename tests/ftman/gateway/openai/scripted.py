"""The gateway over a service that plays a script: what a request means, and what events become."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import openai

from ftman.chat.types import (
    ChatEvent,
    ChatRequest,
    CompletionRequest,
    Finish,
    Options,
    Prompt,
    TextDelta,
    ThinkingDelta,
    TokenText,
    ToolCall,
    ToolCallDelta,
    Usage,
    Waiting,
)
from ftman.errors import NotFoundError
from ftman.gateway.access import AccessRules
from ftman.gateway.app import Gateway
from ftman.names import parse_name
from ftman.service.requests import EmbedInput, EmbedResult, Vector
from tests.fakes.clock import FakeClock

T = TypeVar("T")
Script = Sequence[ChatEvent | Exception | float]
USAGE = Usage(prompt_tokens=20, cached_tokens=12, completion_tokens=9, thinking_tokens=4)


def text(*pieces: str) -> list[ChatEvent]:
    """Deltas of an answer, one token each."""
    return [
        TextDelta(p, (TokenText(p, -0.5, p.encode(), ((p, -0.5, p.encode()),)),)) for p in pieces
    ]


def thinking(*pieces: str) -> list[ChatEvent]:
    """Deltas of reasoning."""
    return [ThinkingDelta(piece) for piece in pieces]


def tool_call(index: int, name: str, *pieces: str, call_id: str = "") -> list[ChatEvent]:
    """A call in pieces, and its end."""
    call_id = call_id or f"call_{name}_{index}"
    deltas: list[ChatEvent] = [ToolCallDelta(index, call_id, name)]
    deltas += [ToolCallDelta(index, arguments=piece) for piece in pieces]
    return [*deltas, ToolCall(index, call_id, name, json.loads("".join(pieces) or "{}"))]


def end(reason: str = "stop", *notes: str) -> list[ChatEvent]:
    """The last event."""
    return [Finish(reason, USAGE, notes=notes)]


HELLO: Script = (Waiting("prefill", 20, 20), *text("Hel", "lo"), *end())


@dataclass(eq=False)
class ScriptedService:
    """What handlers ask of a Service; `asked` lists the requests it got."""

    script: Script = HELLO
    capabilities_: tuple[str, ...] = ("completion", "tools", "thinking", "insert")
    own: Options = field(default_factory=Options)
    clock: FakeClock = field(default_factory=FakeClock)
    asked: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> Any:
        """Counts the letters of a conversation."""

        async def prompt(request: ChatRequest) -> Prompt:
            self.asked.append(request)
            letters = sum(len(message.content) for message in request.messages)
            return Prompt(tuple(range(letters)), (), "")

        return SimpleNamespace(prompt=prompt)

    def find(self, name: str) -> Any:
        if name not in ("tiny", "tiny:latest"):
            raise NotFoundError(f"model '{name}' not found")
        return SimpleNamespace(name=parse_name("tiny"), modified_wall_s=1.7e9)

    def capabilities(self, model: Any) -> tuple[str, ...]:
        return self.capabilities_

    def own_options(self, model: Any) -> Options:
        return self.own

    def context_tokens(self, model: Any) -> int:
        return 4096

    async def models(self) -> list[Any]:
        return [self.find("tiny")]

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        self.asked.append(request)
        async for event in self._play():
            yield event

    async def complete(
        self, request: CompletionRequest, template_values: Any = None
    ) -> AsyncGenerator[ChatEvent, None]:
        self.asked.append(request)
        async for event in self._play():
            yield event

    async def embed(self, request: EmbedInput) -> EmbedResult:
        self.asked.append(request)
        for step in self.script:
            if isinstance(step, Exception):
                raise step
        size = request.dimensions or 4
        vectors = [
            Vector(struct.pack(f"<{size}f", *(0.5 + index for _ in range(size))))
            for index in range(len(request.inputs))
        ]
        return EmbedResult(tuple(vectors), 7, "mean")

    async def _play(self) -> AsyncGenerator[ChatEvent, None]:
        for step in self.script:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, Exception):
                raise step
            else:
                yield step


def app_of(service: ScriptedService, **options: Any) -> Gateway:
    """A gateway over it."""
    return Gateway(service, AccessRules(), clock=service.clock, **options)  # type: ignore[arg-type]


def ask(
    service: ScriptedService, path: str, body: Any = None, method: str = "POST", **options: Any
) -> httpx.Response:
    """One request through the whole gateway, without a socket."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=app_of(service, **options))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            content = None if body is None else json.dumps(body).encode()
            return await client.request(method, path, content=content)

    return asyncio.run(run())


def with_sdk(
    service: ScriptedService, use: Callable[[openai.AsyncOpenAI], Coroutine[Any, Any, T]]
) -> T:
    """Run a coroutine function with the official client, unpatched, over the gateway."""

    async def run() -> T:
        transport = httpx.ASGITransport(app=app_of(service))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, trust_env=False) as plain:
            client = openai.AsyncOpenAI(
                base_url="http://localhost/v1", api_key="none", http_client=plain, max_retries=0
            )
            return await use(client)

    return asyncio.run(run())


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    """Events of a responses stream; both lines of each frame must agree."""
    found = []
    for frame in reply.text.split("\n\n"):
        if not frame:
            continue
        first, second = frame.split("\n")
        value = json.loads(second.removeprefix("data: "))
        assert first == f"event: {value['type']}"
        found.append(value)
    return found

"""Sends recorded requests again and reads our answers with the SDKs' own types.

A recording is a file of tests/data/clients (recorder.py writes them). Ids that an earlier answer
gave are put in place of the recorded ones. Pulls are not sent again: what they name lies elsewhere.
Not here: the manager that answers (test_replay.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic.types
import httpx
import ollama
import openai.types
import openai.types.chat
import openai.types.responses
import pydantic

from tests.clients.redaction import expand

Reader = Callable[[Any], object]


@dataclass(frozen=True)
class Request:
    """One recorded request and how it was answered then."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any
    status: int
    kind: str

    @property
    def route(self) -> str:
        """Method and path."""
        return f"{self.method} {self.target.partition('?')[0]}"

    @property
    def model(self) -> str:
        """The model that it names, "" for none."""
        return str(self.body.get("model", "")) if isinstance(self.body, dict) else ""


def load(path: Path) -> list[Request]:
    """The requests of a recording that can be sent again, long texts filled in."""
    value = json.loads(path.read_text("utf-8"))
    found = [Request(**one | {"body": expand(one["body"])}) for one in value["requests"]]
    return [request for request in found if request.route != "POST /api/pull"]


@dataclass
class Replay:
    """One client's conversation with a manager, again."""

    http: httpx.Client
    response_id: str = ""
    call_ids: list[str] = field(default_factory=list)

    def send(self, request: Request) -> None:
        """Send it and check the answer: same status, same kind, readable by the SDK's types."""
        body = self._with_our_ids(request.body)
        content = None if body is None else json.dumps(body).encode()
        target = re.sub(r"resp_[0-9a-f]+", self.response_id, request.target)
        reply = self.http.request(request.method, target, content=content, headers=request.headers)
        where = f"{request.route}: {reply.text[:300]}"
        assert reply.status_code == request.status, where
        assert reply.headers.get("content-type", "") == request.kind, where
        if reply.status_code >= 400:
            read_error(request, reply)
        elif reply.content:
            self._read(request, reply)

    def _read(self, request: Request, reply: httpx.Response) -> None:
        read_whole, read_piece = READERS.get(request.route, (_nothing, _nothing))
        if request.kind.startswith("text/event-stream"):
            frames = frames_of(reply.text)
            for frame in frames:
                read_piece(frame)
            assert frames[-1] == "[DONE]" or frames[-1]["type"] in LAST_EVENTS, frames[-1]
            whole = frames[-1].get("response") if isinstance(frames[-1], dict) else None
        elif request.kind.startswith("application/x-ndjson"):
            lines = [json.loads(line) for line in reply.text.splitlines()]
            for line in lines:
                read_piece(line)
            assert lines[-1].get("done") is True or lines[-1].get("status") == "success"
            whole = None
        else:
            whole = reply.json()
            read_whole(whole)
        if request.route == "POST /v1/responses" and whole:
            self.response_id = whole["id"]
            self.call_ids = [item["call_id"] for item in whole["output"] if "call_id" in item]

    def _with_our_ids(self, body: Any) -> Any:
        if not isinstance(body, dict) or not body.get("previous_response_id"):
            return body
        ids = iter(self.call_ids)
        given = body["input"] if isinstance(body["input"], list) else []
        items = [item | {"call_id": next(ids)} if "call_id" in item else item for item in given]
        return body | {"previous_response_id": self.response_id, "input": items or body["input"]}


def frames_of(text: str) -> list[Any]:
    """Data of the events of a stream; comments are signs of life."""
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def read_error(request: Request, reply: httpx.Response) -> None:
    """Check the shape of an error in its dialect."""
    error = reply.json()["error"]
    if request.target.startswith("/api/"):
        assert isinstance(error, str)
    elif request.target.startswith("/v1/messages"):
        assert reply.json()["type"] == "error"
        assert {"type", "message"} <= set(error)
    else:
        assert {"message", "type", "param", "code"} <= set(error)


def _nothing(value: Any) -> None:
    """Nothing is known of this answer's type."""


def _of(kind: Any) -> Reader:
    adapter = pydantic.TypeAdapter(kind)

    def read(value: Any) -> object:
        if value == "[DONE]" or (isinstance(value, dict) and value.get("type") == "ping"):
            return None
        return adapter.validate_python(value)

    return read


LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")
READERS: dict[str, tuple[Reader, Reader]] = {
    "GET /api/ps": (_of(ollama.ProcessResponse), _nothing),
    "GET /api/tags": (_of(ollama.ListResponse), _nothing),
    "POST /api/chat": (_of(ollama.ChatResponse), _of(ollama.ChatResponse)),
    "POST /api/embed": (_of(ollama.EmbedResponse), _nothing),
    "POST /api/embeddings": (_of(ollama.EmbeddingsResponse), _nothing),
    "POST /api/generate": (_of(ollama.GenerateResponse), _of(ollama.GenerateResponse)),
    "POST /api/show": (_of(ollama.ShowResponse), _nothing),
    "POST /v1/chat/completions": (
        _of(openai.types.chat.ChatCompletion),
        _of(openai.types.chat.ChatCompletionChunk),
    ),
    "POST /v1/completions": (_of(openai.types.Completion), _of(openai.types.Completion)),
    "POST /v1/embeddings": (_nothing, _nothing),  # base64 there, numbers in the SDK's type
    "POST /v1/messages": (
        _of(anthropic.types.Message),
        _of(anthropic.types.RawMessageStreamEvent),
    ),
    "POST /v1/messages/count_tokens": (_of(anthropic.types.MessageTokensCount), _nothing),
    "POST /v1/responses": (
        _of(openai.types.responses.Response),
        _of(openai.types.responses.ResponseStreamEvent),
    ),
}

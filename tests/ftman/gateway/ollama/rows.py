"""What the native checklist is written in: rows, requests of each route, checks of replies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.ftman.gateway.serving import lines_of

HI = [{"role": "user", "content": "Hi"}]
BLOB = b"some bytes"
DIGEST = "sha256:" + hashlib.sha256(BLOB).hexdigest()
OTHER = "sha256:" + "0" * 64
PNG = "iVBORw0KGgo="
LEVELS = '"high", "medium", "low", "max", true, or false'
RUNNING = "an error was encountered while running the model: "
NO_VISION = "registry.ollama.ai/library/tiny:latest does not support vision"
Check = Callable[[httpx.Response], object]


@dataclass(frozen=True)
class Row:
    """One request and what must come of it. want: fields of the JSON, a text, or a check."""

    item: int
    ask: str
    body: Any = None
    status: int = 200
    want: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def chat(item: int, want: Any = None, status: int = 200, **extra: Any) -> Row:
    body = {"model": "tiny", "messages": HI, "stream": False} | extra
    return Row(item, "POST /api/chat", body, status, want)


def generate(item: int, want: Any = None, status: int = 200, **extra: Any) -> Row:
    body = {"model": "tiny", "prompt": "Hi", "stream": False} | extra
    return Row(item, "POST /api/generate", body, status, want)


def embed(item: int, want: Any = None, status: int = 200, **extra: Any) -> Row:
    return Row(item, "POST /api/embed", {"model": "tiny"} | extra, status, want)


def post(item: int, path: str, body: Any, status: int = 200, want: Any = None) -> Row:
    return Row(item, f"POST /api/{path}", body, status, want)


def error(text: str) -> dict[str, str]:
    return {"error": text}


def last_line(**wanted: Any) -> Check:
    def check(reply: httpx.Response) -> None:
        line = lines_of(reply)[-1]
        assert {key: line.get(key) for key in wanted} == wanted

    return check


def header(name: str, value: str | None) -> Check:
    def check(reply: httpx.Response) -> None:
        assert reply.headers.get(name) == value

    return check


def unit_vectors(count: int, size: int = 8) -> Check:
    def check(reply: httpx.Response) -> None:
        vectors = reply.json()["embeddings"]
        assert [len(vector) for vector in vectors] == [size] * count
        for vector in vectors:
            assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5)

    return check


def warned(text: str) -> Check:
    def check(reply: httpx.Response) -> None:
        assert text in reply.json()["warning"]

    return check


def without(name: str) -> Check:
    def check(reply: httpx.Response) -> None:
        assert name not in reply.json()

    return check


def message(**wanted: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant"} | wanted}


EVIL = {"Origin": "https://evil.example"}
PREFLIGHT = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
GO = "json: cannot unmarshal"
TOO_LONG = "the prompt is longer than the context length currently available to the model; "
LONG = [{"role": "system", "content": "S."}, *HI, {"role": "user", "content": "x" * 700}]
OLD = [{"role": "system", "content": "S."}] + [{"role": "user", "content": "x" * 200}] * 4 + HI

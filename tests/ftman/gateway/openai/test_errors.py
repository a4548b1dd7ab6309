"""One test per row of the error table, in OpenAI's envelope, on every route of the family."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from ftman.errors import (
    BusyError,
    CannotFitError,
    EngineDiedError,
    FtmanError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from ftman.gateway.access import AccessRules
from ftman.gateway.app import Gateway
from ftman.gateway.body import too_large
from ftman.keys import KeyRing, key_of
from ftman.service.prompts import ContextLengthError
from tests.ftman.gateway.openai.scripted import ScriptedService, ask, with_sdk

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": "tiny", "prompt": "Hi"},
    "/v1/responses": {"model": "tiny", "input": "Hi"},
    "/v1/embeddings": {"model": "tiny", "input": "Hi"},
}
ROWS = [
    (UsageError("wrong", code="bad_constraint"), 400, "invalid_request_error", "bad_constraint"),
    (UnsupportedError("not built"), 400, "invalid_request_error", "unsupported"),
    (ContextLengthError(9, 8), 400, "invalid_request_error", "context_length_exceeded"),
    (NotFoundError("no such file"), 404, "not_found_error", "not_found"),
    (too_large(1 << 20), 413, "invalid_request_error", "request_too_large"),
    (FtmanError("slow down", status=429, code="rate_limit_exceeded"), 429, "rate_limit_error",
     "rate_limit_exceeded"),
    (EngineDiedError("it died"), 500, "server_error", "engine_died"),
    (FtmanError("not here", status=501, code="x"), 501, "not_supported_error", "x"),
    (BusyError("the queue is full", code="queue_full"), 503, "server_error", "queue_full"),
    (NetworkError("unreachable"), 502, "server_error", "network"),
    (IntegrityError("damaged"), 502, "server_error", "integrity"),
    (CannotFitError("have 1, need 2"), 507, "server_error", "cannot_fit"),
]  # fmt: skip


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(("error", "status", "kind", "code"), ROWS)
def test_a_row(path: str, error: FtmanError, status: int, kind: str, code: str) -> None:
    for stream in (False, True):
        more = {"stream": True} if stream and "embed" not in path else {}
        reply = ask(ScriptedService([error]), path, BODIES[path] | more)
        assert reply.status_code == status
        assert list(reply.json()) == ["error"]
        told = reply.json()["error"]
        assert {"message", "type", "param", "code"} <= set(told)
        assert (told["type"], told["code"]) == (kind, code)
        assert isinstance(told["message"], str)
        assert ("retry-after" in reply.headers) == (status in (429, 503))


@pytest.mark.parametrize("path", list(BODIES))
def test_too_long_tells_have_and_limit(path: str) -> None:
    param = {"chat/completions": "messages", "completions": "messages"}.get(path[4:], "input")
    reply = ask(ScriptedService([ContextLengthError(5000, 4096)]), path, BODIES[path])
    error = reply.json()["error"]
    assert (error["param"], error["n_prompt_tokens"], error["n_ctx"]) == (param, 5000, 4096)
    assert "maximum context length is 4096 tokens" in error["message"]
    assert "prompt is too long: 5000 tokens > 4096 maximum" in error["message"]


@pytest.mark.parametrize("path", list(BODIES))
def test_unknown_model_missing_model_and_bad_bodies(path: str) -> None:
    service = ScriptedService()
    reply = ask(service, path, BODIES[path] | {"model": "gpt-4o-mini"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    reply = ask(service, path, {k: v for k, v in BODIES[path].items() if k != "model"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    for body in ([], 5, "x"):
        assert ask(service, path, body).status_code == 400
    assert ask(service, path).status_code == 400
    assert ask(service, path, BODIES[path], method="PUT").status_code == 405
    assert not service.asked


def test_a_wrong_key_is_401_in_this_envelope() -> None:
    async def run() -> httpx.Response:
        rules = AccessRules(keys=KeyRing(given=[key_of("right")]))
        app = Gateway(ScriptedService(), rules)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/v1/models", headers={"authorization": "Bearer wrong"})

    reply = asyncio.run(run())
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (401, "invalid_api_key")
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("wrong"), openai.BadRequestError),
        (NotFoundError("gone"), openai.NotFoundError),
        (FtmanError("slow", status=429), openai.RateLimitError),
        (EngineDiedError("died"), openai.InternalServerError),
        (BusyError("full"), openai.InternalServerError),
    ],
)
def test_the_sdk_raises_its_own_classes(error: FtmanError, kind: type[openai.APIError]) -> None:
    async def use(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(kind) as raised:
            await client.responses.create(model="tiny", input="Hi")
        assert raised.value.code == error.code

    with_sdk(ScriptedService([error]), use)

"""Anthropic's error table, row by row, and where its envelope is used."""

from __future__ import annotations

from typing import Any

import pytest

from ftman.errors import BusyError, FtmanError
from ftman.gateway.errors import ANTHROPIC, envelope
from ftman.service.prompts import ContextLengthError
from tests.ftman.gateway.scripted import ScriptedService, ask

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (507, "api_error"),
        (529, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_every_row(status: int, kind: str, stream: bool) -> None:
    error = FtmanError("it failed", status=status)
    reply = ask(ScriptedService([error]), "/v1/messages", BODY | {"stream": stream})
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/json"
    value = reply.json()
    assert value == {
        "type": "error",
        "error": {"type": kind, "message": "it failed"},
        "request_id": reply.headers["request-id"],
    }
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    assert ("retry-after" in reply.headers) == (status in (429, 503))


def test_a_prompt_that_is_too_long_is_told_in_words_that_clients_parse() -> None:
    reply = ask(ScriptedService([ContextLengthError(600, 512)]), "/v1/messages", BODY)
    assert reply.status_code == 400
    assert reply.json()["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 600 tokens > 512 maximum",
    }


def test_a_full_queue_says_when_to_come_back() -> None:
    reply = ask(ScriptedService([BusyError("full")]), "/v1/messages", BODY)
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "5"


def test_an_unknown_model() -> None:
    reply = ask(ScriptedService(), "/v1/messages", BODY | {"model": "nope"})
    assert reply.status_code == 404
    assert reply.json()["error"] == {
        "type": "not_found_error",
        "message": "model 'nope' not found",
    }


@pytest.mark.parametrize(
    ("method", "path", "headers", "anthropic"),
    [
        ("POST", "/v1/messages/nope", {}, True),
        ("GET", "/v1/messages", {}, True),
        ("GET", "/v1/models/nope", {"anthropic-version": "2023-06-01"}, True),
        ("GET", "/v1/models/nope", {}, False),
        ("GET", "/v1/nope", {"anthropic-version": "2023-06-01"}, False),
    ],
)
def test_whose_envelope(method: str, path: str, headers: dict[str, str], anthropic: bool) -> None:
    reply = ask(ScriptedService(), path, method=method, headers=headers)
    assert reply.status_code in (404, 405)
    assert (reply.json().get("type") == "error") == anthropic


def test_a_fault_of_ours_shows_no_details() -> None:
    class Broken(ScriptedService):
        def chat(self, request: Any) -> Any:
            raise ZeroDivisionError("secret")

    reply = ask(Broken(), "/v1/messages", BODY)
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "api_error"
    assert "secret" not in reply.text


def test_hints_are_part_of_the_message() -> None:
    error = FtmanError("It failed.", hint="Do this.", status=507)
    assert envelope(ANTHROPIC, error)["error"]["message"] == "It failed. Do this."

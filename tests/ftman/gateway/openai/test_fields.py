"""Every documented request field is seen to have an effect, an error, or a warning of its own.

The lists of fields are the official client's, so that a field it learns fails here until it is
dealt with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from ftman.chat.types import Constraint, Message, ToolChoice
from tests.ftman.gateway.openai.scripted import ScriptedService, ask, end, text, tool_call

Check = Callable[[Any, dict[str, Any]], bool]
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "time"}}
FLAT_TOOL = {"type": "function", "name": "time"}


@dataclass(frozen=True)
class Case:
    """A value of one field; check gets the request the service saw, and the reply.

    check None: the reply must be a 400 that names the field. told: a warning with this text.
    """

    field: str
    value: Any
    check: Check | None = None
    told: str = ""
    more: tuple[tuple[str, Any], ...] = ()


def option(name: str, value: Any, seen: Any = None) -> Case:
    """A sampling option that reaches the engine's options."""
    wanted = value if seen is None else seen
    known = {"repetition_penalty": "repeat_penalty"}.get(name, name)
    return Case(name, value, lambda request, _: bool(getattr(request.options, known) == wanted))


def told(field: str, value: Any) -> Case:
    """A field that is only warned of."""
    return Case(field, value, lambda *_: True, told=field)


def refused(field: str, value: Any, *more: tuple[str, Any]) -> Case:
    """A field, or a value of it, that is an error."""
    return Case(field, value, None, more=more)


SAMPLING = (
    option("temperature", 0.3),
    option("top_p", 0.7),
    option("top_k", 7),
    option("min_p", 0.2),
    option("typical_p", 0.4),
    option("repetition_penalty", 1.5),
    option("frequency_penalty", 0.5),
    option("presence_penalty", -0.5),
    option("logit_bias", {"5": -100}, ((5, -100.0),)),
    option("seed", 11),
    option("stop", ["x", ""], ("x",)),
    option("num_ctx", 2048),
    Case("keep_alive", "5m", lambda request, _: request.keep_alive_s == 300),
    Case("options", {"num_ctx": 1024, "num_gpu": 1}, lambda r, _: r.options.num_ctx == 1024,
         told="options.num_gpu"),
    told("min_tokens", 5),
    told("mirostat_tau", 5.0),
    told("dry_multiplier", 1.0),
    told("ignore_eos", True),
    told("user", "me"),
)  # fmt: skip

CHAT = (
    *SAMPLING,
    Case("model", "tiny:latest", lambda request, reply: reply["model"] == "tiny:latest"),
    Case("messages", [USER, USER], lambda request, _: len(request.messages) == 2),
    refused("audio", {"voice": "alloy"}),
    refused("modalities", ["audio"]),
    Case("modalities", ["text"], lambda *_: True),
    Case("functions", [{"name": "time"}],
         lambda request, reply: request.tools[0].name == "time"
         and "function_call" in reply["choices"][0]["message"]),
    Case("function_call", "none", lambda request, _: request.tools == (),
         more=(("functions", [{"name": "time"}]),)),
    Case("logprobs", True, lambda r, reply: r.logprobs == 0 and reply["choices"][0]["logprobs"]),
    Case("top_logprobs", 3, lambda request, _: request.logprobs == 3, more=(("logprobs", True),)),
    Case("max_completion_tokens", 9, lambda request, _: request.options.num_predict == 9),
    Case("max_tokens", 9, lambda request, _: request.options.num_predict == 9),
    told("metadata", {"a": "b"}),
    told("moderation", {"a": "b"}),
    Case("n", 2, lambda _, reply: len(reply["choices"]) == 2),
    Case("parallel_tool_calls", False, lambda request, _: request.parallel_tool_calls is False),
    told("prediction", {"type": "content", "content": "x"}),
    told("prompt_cache_key", "x"),
    told("prompt_cache_options", {"a": "b"}),
    told("prompt_cache_retention", "24h"),
    Case("reasoning_effort", "low", lambda request, _: request.think == "low"),
    Case("response_format", {"type": "json_object"},
         lambda request, _: request.constraint == Constraint("json")),
    told("safety_identifier", "x"),
    Case("service_tier", "flex", lambda _, reply: reply["service_tier"] == "default"),
    told("store", True),
    Case("store", False, lambda _, reply: "warnings" not in reply),
    Case("tool_choice", "required", lambda request, _: request.tool_choice.mode == "required",
         more=(("tools", [TOOL]),)),
    Case("tools", [TOOL], lambda request, _: request.tools[0].name == "time"),
    *(told(name, 5) for name in ("max_output_tokens", "num_predict", "think", "format")),
    told("verbosity", "low"),
    told("web_search_options", {"a": "b"}),
    told("thinking_budget_tokens", 100),
    Case("chat_template_kwargs", {"x": 1}, lambda request, _: request.template_values == {"x": 1}),
)  # fmt: skip

TEXT = (
    *SAMPLING,
    Case("model", "tiny:latest", lambda request, reply: reply["model"] == "tiny:latest"),
    Case("prompt", [5, 6], lambda request, _: request.token_ids == (5, 6)),
    refused("best_of", 3),
    Case("best_of", 2, lambda _, reply: len(reply["choices"]) == 2, more=(("n", 2),)),
    Case("echo", True, lambda request, _: request.echo is True),
    Case("logprobs", 2, lambda r, reply: r.logprobs == 2 and reply["choices"][0]["logprobs"]),
    Case("max_tokens", 9, lambda request, _: request.options.num_predict == 9),
    Case("n", 2, lambda _, reply: len(reply["choices"]) == 2),
    Case("suffix", "b", lambda request, _: request.suffix == "b" and not request.raw),
    Case("response_format", {"type": "json_object"},
         lambda request, _: request.constraint == Constraint("json")),
    Case("regex", "a+", lambda request, _: request.constraint == Constraint("regex", "a+")),
)  # fmt: skip

RESPONSES = (
    *SAMPLING,
    Case("model", "tiny:latest", lambda request, reply: reply["model"] == "tiny:latest"),
    Case("input", [USER, USER], lambda request, _: len(request.messages) == 2),
    Case("instructions", "Short", lambda r, _: r.messages[0] == Message("system", "Short")),
    told("access_programs", ["x"]),
    refused("background", True),
    told("background_options", {"a": 1}),
    told("context_management", [{"type": "x"}]),
    refused("conversation", "conv"),
    told("image", {"a": 1}),
    Case("include", ["message.output_text.logprobs"],
         lambda request, reply: request.logprobs == 0
         and reply["output"][0]["content"][0]["logprobs"]),
    Case("include", ["web_search_call.results"], lambda *_: True, told="web_search_call.results"),
    Case("max_output_tokens", 9, lambda request, reply: request.options.num_predict == 9
         and reply["max_output_tokens"] == 9),
    told("max_tool_calls", 3),
    Case("metadata", {"a": "b"}, lambda _, reply: reply["metadata"] == {"a": "b"}),
    told("moderation", {"a": "b"}),
    Case("parallel_tool_calls", False, lambda request, _: request.parallel_tool_calls is False),
    refused("previous_response_id", "resp_none"),
    refused("prompt", {"id": "x"}),
    told("prompt_cache_key", "x"),
    told("prompt_cache_options", {"a": "b"}),
    told("prompt_cache_retention", "24h"),
    Case("reasoning", {"effort": "low", "summary": "auto"}, lambda r, _: r.think == "low",
         told="reasoning.summary"),
    told("safety_identifier", "x"),
    Case("service_tier", "flex", lambda _, reply: reply["service_tier"] == "default"),
    Case("store", False, lambda _, reply: reply["store"] is False),
    Case("text", {"format": {"type": "json_object"}, "verbosity": "low"},
         lambda request, _: request.constraint == Constraint("json"), told="text.verbosity"),
    Case("tool_choice", {"type": "function", "name": "time"},
         lambda request, _: request.tool_choice == ToolChoice("named", "time"),
         more=(("tools", [FLAT_TOOL]),)),
    Case("tools", [FLAT_TOOL], lambda request, _: request.tools[0].name == "time"),
    Case("top_logprobs", 2, lambda request, _: request.logprobs == 2),
    Case("truncation", "auto", lambda request, _: request.strict_length is False),
    Case("stream_options", {"include_obfuscation": True}, lambda *_: True,
         told="include_obfuscation"),
    *(told(name, 5) for name in ("max_tokens", "max_completion_tokens", "num_predict")),
    *(told(name, 5) for name in ("think", "format", "logprobs")),
    told("client_metadata", {"a": "b"}),
)  # fmt: skip

EMBEDDINGS = (
    Case("model", "tiny:latest", lambda _, reply: reply["model"] == "tiny:latest"),
    Case("input", ["a", "b"], lambda request, reply: len(reply["data"]) == 2),
    Case("dimensions", 3, lambda r, reply: r.strict_dimensions
         and len(reply["data"][0]["embedding"]) == 3),
    Case("encoding_format", "base64",
         lambda _, reply: isinstance(reply["data"][0]["embedding"], str)),
    Case("keep_alive", 60, lambda request, _: request.keep_alive_s == 60),
    told("user", "me"),
)  # fmt: skip

ROUTES: dict[str, tuple[dict[str, Any], tuple[Case, ...]]] = {
    "chat/completions": ({"model": "tiny", "messages": [USER]}, CHAT),
    "completions": ({"model": "tiny", "prompt": "Hi"}, TEXT),
    "responses": ({"model": "tiny", "input": "Hi"}, RESPONSES),
    "embeddings": ({"model": "tiny", "input": "Hi"}, EMBEDDINGS),
}
CASES = [
    pytest.param(path, base, case, id=f"{path}-{case.field}-{number}")
    for path, (base, cases) in ROUTES.items()
    for number, case in enumerate(cases)
]


@pytest.mark.parametrize(("path", "base", "case"), CASES)
def test_a_field_has_its_effect_or_its_error(path: str, base: Any, case: Case) -> None:
    calls = case.field in ("functions",)
    service = ScriptedService((*tool_call(0, "time"), *end()) if calls else (*text("x"), *end()))
    reply = ask(service, f"/v1/{path}", base | dict(case.more) | {case.field: case.value})
    value = reply.json()
    if case.check is None:
        assert 400 <= reply.status_code < 500
        error = value["error"]
        assert case.field in (error["param"] or error["message"])
        return
    assert reply.status_code == 200, value
    assert case.check(service.asked[0], value)
    notes = " ".join(value.get("warnings", ()))
    assert case.told in notes
    if not case.told:
        assert case.field not in notes


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("chat/completions", ChatParams),
        ("completions", TextParams),
        ("responses", ResponseCreateParamsBase),
        ("embeddings", EmbeddingCreateParams),
    ],
)
def test_the_lists_are_complete(path: str, params: Any) -> None:
    elsewhere = {"stream_options"}  # test_chat.py, test_openai.py
    covered = {case.field for case in ROUTES[path][1]}
    assert set(params.__annotations__) - covered - elsewhere == set()


def test_counting_takes_what_responses_take() -> None:
    covered = {case.field for case in RESPONSES} | {"personality"}
    assert set(InputTokenCountParams.__annotations__) <= covered


@pytest.mark.parametrize("path", list(ROUTES))
def test_unknown_null_and_empty_fields_are_absent(path: str) -> None:
    base, cases = ROUTES[path]
    fields = {case.field for case in cases} - set(base)
    for empty in (None, [], {}, ""):
        body = {name: empty for name in fields if _may_be(name, empty)} | base
        reply = ask(ScriptedService((*text("x"), *end())), f"/v1/{path}", body | {"unheard_of": 1})
        assert reply.status_code == 200, (empty, reply.text)
        assert "warnings" not in reply.json(), reply.text


def _may_be(name: str, empty: Any) -> bool:
    """Which kinds of emptiness real clients send: null anywhere, others by the field's own kind."""
    lists = {"tools", "functions", "stop", "include", "modalities", "context_management"}
    objects = {"logit_bias", "options", "metadata", "text", "reasoning", "chat_template_kwargs"}
    texts = {"tool_choice", "user", "suffix", "prompt_cache_key", "previous_response_id"}
    kinds: dict[type, set[str]] = {list: lists, dict: objects, str: texts}
    return empty is None or name in kinds[type(empty)]

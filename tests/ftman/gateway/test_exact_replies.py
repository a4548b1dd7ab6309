"""What a model wrote, sent back through any dialect, is the ids that it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, Tiny, ids_of, managing

TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# tools #}"
)
LONG = 100
SCHEMA = {"type": "object", "properties": {"p": {"type": "string"}, "n": {"type": "integer"}}}
LS = {"name": "ls", "description": "List a folder.", "parameters": SCHEMA}


def reply_to(number: int) -> str:
    """Every second time a call: arguments in an order and with spaces of the model's own."""
    if number % 2:
        return f"<think>the thing {number}</think>\n\nHere it is: {number}.\n"
    call = f'{{"name":"ls","arguments":{{"p":"/the/{number}",  "n": {number}}}}}'
    return f"<think>\nsee {number}\n</think>I look {number}.<tool_call>{call}</tool_call>"


def asks(number: int) -> str:
    return f"Q{number:03}Z"


class Dialect(Protocol):
    """One client: says something, keeps what comes back as its SDK would."""

    def user(self, text: str) -> None: ...
    def turn(self, http: httpx.Client) -> bool: ...
    def result(self, text: str) -> None: ...


class Chat:
    """OpenAI's chat completions."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def turn(self, http: httpx.Client) -> bool:
        tools = [{"type": "function", "function": LS}]
        body = {"model": "tiny", "messages": self.messages, "tools": tools}
        said = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        thoughts = {"reasoning_content": said["reasoning_content"]}
        kept = {key: said.get(key) for key in ("role", "content", "tool_calls") if said.get(key)}
        for number, call in enumerate(kept.get("tool_calls", ())):
            call["id"] = f"mine-{len(self.messages)}-{number}"
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, sort_keys=True, indent=2)
        if "content" in kept:
            kept["content"] = kept["content"].strip()
        self.messages.append(kept | thoughts)
        return "tool_calls" in kept

    def result(self, text: str) -> None:
        call_id = self.messages[-1]["tool_calls"][0]["id"]
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


class Responses:
    """OpenAI's responses, items sent back as they came."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    def user(self, text: str) -> None:
        self.items.append({"role": "user", "content": text})

    def turn(self, http: httpx.Client) -> bool:
        body = {"model": "tiny", "input": self.items, "tools": [{"type": "function", **LS}]}
        self.items += http.post("/v1/responses", json=body | {"store": False}).json()["output"]
        return bool(self.items[-1]["type"] == "function_call")

    def result(self, text: str) -> None:
        call_id = self.items[-1]["call_id"]
        self.items.append({"type": "function_call_output", "call_id": call_id, "output": text})


class Anthropic:
    """Anthropic's messages."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.system = 0

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def turn(self, http: httpx.Client) -> bool:
        self.system += 1
        mark = {"type": "ephemeral"}
        marked = [*self.messages[-1]["content"][:-1],
                  {**self.messages[-1]["content"][-1], "cache_control": mark}]  # fmt: skip
        tool = {"name": "ls", "description": LS["description"], "input_schema": SCHEMA}
        billing = f"x-anthropic-billing-header: cc_version=2; cch={self.system:05x};"
        body = {
            "model": "tiny", "max_tokens": 400, "tools": [tool],
            "system": [{"type": "text", "text": billing}],
            "messages": [*self.messages[:-1], {"role": "user", "content": marked}],
        }  # fmt: skip
        content = http.post("/v1/messages", json=body).json()["content"]
        self.messages.append({"role": "assistant", "content": content})
        return bool(content[-1]["type"] == "tool_use")

    def result(self, text: str) -> None:
        call_id = self.messages[-1]["content"][-1]["id"]
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        self.messages.append({"role": "user", "content": [block]})


class Native:
    """Ollama's chat."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def turn(self, http: httpx.Client) -> bool:
        tools = [{"type": "function", "function": LS}]
        body = {"model": "tiny", "messages": self.messages, "tools": tools, "stream": False}
        said = http.post("/api/chat", json=body).json()["message"]
        self.messages.append(said)
        return "tool_calls" in said

    def result(self, text: str) -> None:
        self.messages.append({"role": "tool", "tool_name": "ls", "content": text})


DIALECTS: dict[str, type[Chat | Responses | Anthropic | Native]] = {
    "chat": Chat,
    "responses": Responses,
    "anthropic": Anthropic,
    "ollama": Native,
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "requests.ndjson"


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[Manager]:
    """A manager whose model answers each question in its own way."""
    replies = tuple((ids_of(asks(n)), ids_of(reply_to(n))) for n in range(LONG))
    script = FakeScript(tokens=ids_of("?"), replies=replies, request_log=str(log))
    able = ("completion", "tools", "thinking")
    models = (Tiny(jinja=TEMPLATE, capabilities=able, context=1 << 17),)
    with managing(tmp_path_factory.mktemp("home"), script, models) as running:
        yield running


def asked(log: Path) -> list[int]:
    """The newest prompt."""
    ids: list[int] = json.loads(log.read_text().splitlines()[-1])["request"]["token_ids"]
    return ids


def starts_with(ids: Sequence[int], start: Sequence[int]) -> bool:
    return list(ids[: len(start)]) == list(start)


@pytest.mark.parametrize("turns", [5, pytest.param(LONG, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DIALECTS)
def test_each_prompt_begins_with_the_last_one_and_its_reply(
    manager: Manager, log: Path, name: str, turns: int
) -> None:
    client: Dialect = DIALECTS[name]()
    before: list[int] = []
    called = False
    for number in range(turns):
        question = asks(number)
        if called:
            client.result(question)
        else:
            client.user(question)
        called = client.turn(manager.http)
        prompt = asked(log)
        assert starts_with(prompt, before)
        assert called == (number % 2 == 0)
        before = [*prompt, *ids_of(reply_to(number))]


def test_a_conversation_may_go_on_in_another_dialect(manager: Manager, log: Path) -> None:
    first = Native()
    first.user(asks(1))
    assert not first.turn(manager.http)
    whole = [*asked(log), *ids_of(reply_to(1))]
    said = first.messages[-1]
    second = Anthropic()
    second.user(asks(1))
    second.messages.append({"role": "assistant", "content": [
        {"type": "thinking", "thinking": said["thinking"], "signature": "ft"},
        {"type": "text", "text": said["content"]}]})  # fmt: skip
    second.user(asks(2))
    second.turn(manager.http)
    assert starts_with(asked(log), whole)

"""Tools and thinking with the real service and the official client; only the engine is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, Tiny, ids_of, managing

TEMPLATE = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "{{ if .Tools }}<tools>{{ range .Tools }}{{ .Function }}{{ end }}</tools>"
    'call as <tool_call>{"name": "x", "arguments": {}}</tool_call>{{ end }}'
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n"
    "{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}"
    '{{ range .ToolCalls }}<tool_call>{"name": "{{ .Function.Name }}", '
    '"arguments": {{ .Function.Arguments }}}</tool_call>{{ end }}<|im_end|>\n{{ end }}'
    "<|im_start|>assistant\n"
)
REPLY = '<think>hm</think>I look.<tool_call>\n{"name": "ls", "arguments": {"p": "/"}}\n</tool_call>'
LS: ToolParam = {
    "name": "ls",
    "description": "List a folder.",
    "input_schema": {"type": "object", "properties": {"p": {"type": "string"}}},
}
USER: list[MessageParam] = [{"role": "user", "content": "What is in /?"}]
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "ft"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "name": "ls", "input": {"p": "/"}},
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine writes what it was asked."""
    return tmp_path_factory.mktemp("log") / "requests.ndjson"


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[Manager]:
    """A manager whose model thinks, says something and calls a tool, whatever it is asked."""
    able = ("completion", "tools", "thinking")
    models = (Tiny(template=TEMPLATE, capabilities=able, context=1 << 16), Tiny("plain", seed=1))
    script = FakeScript(tokens=ids_of(REPLY), request_log=str(log))
    with managing(tmp_path_factory.mktemp("home"), script, models) as running:
        yield running


@pytest.fixture(scope="module")
def client(manager: Manager) -> anthropic.Anthropic:
    """The official client, as it comes."""
    return anthropic.Anthropic(base_url=manager.url, api_key="none", max_retries=0, timeout=30)


def asked_ids(log: Path) -> list[int]:
    """The prompt of the newest request."""
    ids: list[int] = json.loads(log.read_text().splitlines()[-1])["request"]["token_ids"]
    return ids


def without_ids(blocks: Any) -> list[dict[str, Any]]:
    """Blocks without the ids of their calls."""
    dumped = [block.to_dict() for block in blocks]
    for block in dumped:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
    return dumped


def test_whole(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="tiny", max_tokens=200, messages=USER, tools=[LS])
    assert without_ids(message.content) == BLOCKS
    assert message.stop_reason == "tool_use"


def test_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="tiny", max_tokens=200, messages=USER, tools=[LS], thinking={"type": "adaptive"}
    ) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert without_ids(message.content) == BLOCKS
    assert message.stop_reason == "tool_use"
    assert json.loads("".join(pieces)) == {"p": "/"}
    assert len(pieces) > 1


def test_no_tokens_at_all_only_reads_the_prompt(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="tiny", max_tokens=0, messages=USER)
    assert message.content == []
    assert message.usage.output_tokens == 0
    assert message.stop_reason == "max_tokens"


def test_a_tool_round_sent_back_is_the_prompt_it_came_from(
    client: anthropic.Anthropic, log: Path
) -> None:
    first = client.messages.create(model="tiny", max_tokens=200, messages=USER, tools=[LS])
    before = asked_ids(log)
    call = first.content[-1]
    assert call.type == "tool_use"
    turns: list[MessageParam] = [
        *USER,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": "etc usr"}]},
    ]  # fmt: skip
    client.messages.create(model="tiny", max_tokens=1, messages=turns, tools=[LS])
    after = asked_ids(log)
    assert after[: len(before)] == before
    counted = client.messages.count_tokens(model="tiny", messages=turns, tools=[LS])
    assert counted.input_tokens == len(after)


def test_what_the_client_adds_for_its_own_use_never_reaches_the_prompt(
    client: anthropic.Anthropic, log: Path
) -> None:
    client.messages.create(model="tiny", max_tokens=1, messages=USER, tools=[LS], system="Be.")
    plain = asked_ids(log)
    mark: Any = {"type": "ephemeral"}
    client.messages.create(
        model="tiny", max_tokens=1, tools=[{**LS, "cache_control": mark}], cache_control=mark,
        messages=[{"role": "user", "content": [
            {"type": "text", "text": "What is in /?", "cache_control": mark}]}],
        system=[{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=ab12c;"},
                {"type": "text", "text": "Be.", "cache_control": mark}],
        metadata={"user_id": "x"},
    )  # fmt: skip
    assert asked_ids(log) == plain


def test_deferred_tools_change_nothing_until_they_are_found(
    client: anthropic.Anthropic, log: Path
) -> None:
    search: ToolParam = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    hidden: ToolParam = {**LS, "defer_loading": True}
    create = client.messages.create
    create(model="tiny", max_tokens=1, messages=USER, tools=[search])
    head = asked_ids(log)
    create(model="tiny", max_tokens=1, messages=USER, tools=[hidden, search])
    assert asked_ids(log) == head
    found: list[MessageParam] = [
        *USER,
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"query": "ls"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [
            {"type": "tool_reference", "tool_name": "ls"}]}]},
    ]  # fmt: skip
    message = create(model="tiny", max_tokens=200, messages=found, tools=[hidden, search])
    told = asked_ids(log)
    assert told[: len(head) - 5] == head[: len(head) - 5]
    assert len(told) > len(head) + len("List a folder.")
    assert message.content[-1].type == "tool_use"


def test_a_hundred_turns_make_the_same_prompt_through_both_dialects(
    manager: Manager, log: Path
) -> None:
    anthropic_turns: list[dict[str, Any]] = []
    openai_turns: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(100):
        call_id, path, answer = f"call_{turn}", {"p": f"/{turn}", "a": 1}, f"file{turn}"
        user = {"role": "user", "content": f"List {turn}"}
        anthropic_turns += [user, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "ft"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": f"toolu_{call_id}", "name": "ls", "input": path}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"toolu_{call_id}", "content": answer}]},
        ]  # fmt: skip
        openai_turns += [user, {"role": "assistant", "content": "I look.",
            "reasoning_content": "hm", "tool_calls": [{"id": call_id, "type": "function",
            "function": {"name": "ls", "arguments": json.dumps(path)}}]},
            {"role": "tool", "tool_call_id": call_id, "content": answer},
        ]  # fmt: skip
    function = {"name": "ls", "description": LS["description"], "parameters": LS["input_schema"]}
    common = {"model": "tiny", "max_tokens": 1}
    body = {**common, "messages": anthropic_turns, "tools": [LS], "system": "Be brief."}
    assert manager.http.post("/v1/messages", json=body).status_code == 200
    ours = asked_ids(log)
    body = {
        **common,
        "messages": openai_turns,
        "tools": [{"type": "function", "function": function}],
    }
    assert manager.http.post("/v1/chat/completions", json=body).status_code == 200
    assert asked_ids(log) == ours


def test_a_model_without_tools_says_so_and_one_that_does_not_think_answers(
    client: anthropic.Anthropic,
) -> None:
    with pytest.raises(anthropic.BadRequestError, match="does not support tools"):
        client.messages.create(model="plain", max_tokens=5, messages=USER, tools=[LS])
    message = client.messages.create(
        model="plain", max_tokens=5, messages=USER, thinking={"type": "adaptive"}
    )
    assert "does not support thinking" in message.to_dict()["warnings"][0]  # type: ignore[typeddict-item]

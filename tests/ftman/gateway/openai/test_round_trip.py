"""Tools and reasoning with real service and official client; only the engine is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

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
SCHEMA = {"type": "object", "properties": {"p": {"type": "string"}}}
LS: dict[str, Any] = {"name": "ls", "description": "List a folder.", "parameters": SCHEMA}
CHAT_LS: Any = {"type": "function", "function": LS}
USER: Any = [{"role": "user", "content": "What is in /?"}]


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
def client(manager: Manager) -> openai.OpenAI:
    """The official client, as it comes."""
    return openai.OpenAI(base_url=f"{manager.url}/v1", api_key="none", max_retries=0, timeout=30)


def asked(log: Path) -> dict[str, Any]:
    """The newest request of the engine."""
    return dict(json.loads(log.read_text().splitlines()[-1])["request"])


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=USER, tools=[CHAT_LS])
    (choice,) = whole.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.to_dict()["reasoning"] == "hm"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("ls", {"p": "/"})
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens
    with client.chat.completions.stream(model="tiny", messages=USER, tools=[CHAT_LS]) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    assert final.message.content == "I look."


def test_responses_whole_and_streamed(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", **LS}
    whole = client.responses.create(model="tiny", input="What is in /?", tools=[tool])
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    with client.responses.stream(model="tiny", input="What is in /?", tools=[tool]) as stream:
        final = stream.get_final_response()
    assert final.output_text == whole.output_text == "I look."
    call = final.output[2]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"p": "/"}


def test_a_choice_that_binds_is_a_constraint_of_the_engine(
    client: openai.OpenAI, log: Path
) -> None:
    client.chat.completions.create(
        model="tiny", messages=USER, tools=[CHAT_LS], tool_choice="required", max_tokens=1
    )
    assert asked(log)["constraint"]["kind"] == "lark"
    client.chat.completions.create(
        model="tiny", messages=USER, tools=[CHAT_LS], tool_choice="none", max_tokens=1
    )
    hidden = asked(log)
    assert hidden["constraint"] is None
    client.chat.completions.create(model="tiny", messages=USER, max_tokens=1)
    assert asked(log)["token_ids"] == hidden["token_ids"]


def test_a_format_is_a_constraint_of_the_engine(client: openai.OpenAI, log: Path) -> None:
    client.chat.completions.create(
        model="plain", messages=USER, response_format={"type": "json_object"}, max_tokens=1
    )
    assert asked(log)["constraint"] is not None
    client.completions.create(
        model="plain", prompt="x", max_tokens=1, extra_body={"guided_regex": "a+"}
    )
    assert asked(log)["constraint"] == {"kind": "regex", "text": "a+"}


def test_a_hundred_turns_make_the_same_prompt_through_three_dialects(
    manager: Manager, log: Path
) -> None:
    chat: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    items: list[dict[str, Any]] = []
    native: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(100):
        path, answer = {"p": f"/{turn}", "a": 1}, f"file{turn}"
        text = json.dumps(path)
        user = {"role": "user", "content": f"List {turn}"}
        chat += [user, {"role": "assistant", "content": "I look.", "reasoning": "hm",
            "tool_calls": [{"id": f"call{turn}", "type": "function",
                            "function": {"name": "ls", "arguments": text}}]},
            {"role": "tool", "tool_call_id": f"call{turn}",
             "content": [{"type": "text", "text": answer}]}]  # fmt: skip
        items += [user,
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": f"c{turn}", "name": "ls", "arguments": text},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": answer}]  # fmt: skip
        native += [user, {"role": "assistant", "content": "I look.", "thinking": "hm",
            "tool_calls": [{"function": {"name": "ls", "arguments": path}}]},
            {"role": "tool", "tool_name": "ls", "content": answer}]  # fmt: skip
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": chat, "tools": [CHAT_LS], "max_tokens": 1},
        "/v1/responses": {"instructions": "Be brief.", "input": items, "max_output_tokens": 1,
                          "tools": [{"type": "function", "strict": False, **LS}]},
        "/api/chat": {"messages": native, "tools": [CHAT_LS], "options": {"num_predict": 1}},
    }  # fmt: skip
    seen = []
    for path, body in bodies.items():
        reply = manager.http.post(path, json={"model": "tiny"} | body)
        assert reply.status_code == 200, reply.text[:300]
        seen.append(asked(log)["token_ids"])
    assert len(seen[0]) > 100
    assert seen[0] == seen[1] == seen[2]


def test_a_stored_response_goes_on_with_the_same_prompt(client: openai.OpenAI, log: Path) -> None:
    tool: Any = {"type": "function", **LS}
    first = client.responses.create(model="tiny", input="What is in /?", tools=[tool])
    call = first.output[2]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "etc usr"}
    client.responses.create(
        model="tiny", input=[result], tools=[tool], previous_response_id=first.id, store=False
    )
    referred = asked(log)["token_ids"]
    whole: Any = [*USER, *(item.to_dict() for item in first.output), result]
    client.responses.create(model="tiny", input=whole, tools=[tool])
    assert asked(log)["token_ids"] == referred
    counted = client.responses.input_tokens.count(model="tiny", input=whole, tools=[tool])
    assert counted.input_tokens == len(referred)


def test_long_outputs_are_clamped_and_long_prompts_refused(
    client: openai.OpenAI, log: Path
) -> None:
    client.responses.create(model="plain", input="Hi", max_output_tokens=10**6)
    request = asked(log)
    assert request["max_tokens"] + len(request["token_ids"]) == 512
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model="plain", input="x" * 600, stream=True)
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "input"
    cut = client.responses.create(
        model="plain", input=[*({"role": "user", "content": "y" * 90} for _ in range(9))],
        truncation="auto", max_output_tokens=1,
    )  # fmt: skip
    assert any("left out" in note for note in cut.to_dict()["warnings"])  # type: ignore[attr-defined]


def test_a_model_without_tools_says_so_and_one_that_does_not_think_answers(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError, match="does not support tools"):
        client.chat.completions.create(model="plain", messages=USER, tools=[CHAT_LS])
    answer = client.chat.completions.create(
        model="plain", messages=USER, reasoning_effort="high", max_tokens=1
    )
    assert "does not support thinking" in answer.to_dict()["warnings"][0]  # type: ignore[index]

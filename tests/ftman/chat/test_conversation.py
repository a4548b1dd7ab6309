"""Conversations in one form: results find their calls, ids stay inside, arguments are mappings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ftman.chat.anchors import closing_ids
from ftman.chat.conversation import canonical, tool_objects
from ftman.chat.formats.registry import format_named
from ftman.chat.render import ChatTemplate, render_chat
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import Message, Prompt, Tool

CALLS = ({"id": "a", "function": {"name": "f", "arguments": {"x": 1}}},
         {"id": "b", "function": {"name": "g", "arguments": '{"y": 2}'}})  # fmt: skip
HERMES = format_named("hermes")
TEXT_ARGUMENTS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c['function']['name'] + ' ' }}"
    "{{ c['function']['arguments'] + ';' }}{% endfor %}\n{% endfor %}"
)
INDIRECT = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set args = c.function.arguments %}"
    "{% for k, v in args.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}"
)
BLOCKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.thinking %}<think>\n{{ m.thinking }}\n</think>\n{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([("", "b"), ("", "a")], [("g", "b"), ("f", "a")]),
        ([("g", ""), ("f", "")], [("g", "b"), ("f", "a")]),
        ([("", ""), ("", "")], [("f", "a"), ("g", "b")]),
        ([("", "zz"), ("h", "")], [("", "zz"), ("h", "")]),
    ],
)
def test_a_result_knows_its_call(
    results: list[tuple[str, str]], expected: list[tuple[str, str]]
) -> None:
    assert HERMES is not None
    told = [Message("tool", "r", tool_name=name, tool_call_id=idx) for name, idx in results]
    made = canonical([Message("assistant", "", tool_calls=CALLS), *told], HERMES)
    assert [(m.tool_name, m.tool_call_id) for m in made[1:]] == expected
    functions = [call["function"] for call in made[0].tool_calls]
    assert functions == [
        {"name": "f", "arguments": {"x": 1}},
        {"name": "g", "arguments": {"y": 2}},
    ]


@pytest.mark.parametrize("text", ["no json", "[1]", "3"])
def test_arguments_that_are_no_object_are_wrapped_and_break_nothing(text: str) -> None:
    assert HERMES is not None
    call = {"function": {"name": "f", "arguments": text}}
    (message,) = canonical([Message("assistant", "", tool_calls=(call,))], HERMES)
    assert message.tool_calls[0]["function"]["arguments"] == {"arguments": text}


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("kimi", ["functions.f:0", "functions.g:1"]),
        ("mistral", ["call00000", "call00001"]),
        ("hermes", ["a", "b"]),
    ],
)
def test_formats_with_ids_of_their_own_see_such_ids(name: str, ids: list[str]) -> None:
    fmt = format_named(name)
    assert fmt is not None
    result = Message("tool", "r", tool_call_id="b")
    made = canonical([Message("assistant", "", tool_calls=CALLS), result], fmt)
    assert [call["id"] for call in made[0].tool_calls] == ids
    assert made[1].tool_call_id == ids[1]
    assert canonical(made, fmt) == made


def test_tools_have_one_form_whatever_was_given() -> None:
    parameters = {"properties": {"x": {}}, "type": "object"}
    given = {"function": {"strict": True, "parameters": 1, "name": 2, "response": {"a": 1}}}
    tools = [Tool("f", "d", parameters, given=given), Tool("g"), Tool("h", deferred=True)]
    made = tool_objects(tools)
    assert [tool["function"]["name"] for tool in made] == ["f", "g"]
    assert list(made[0]["function"].items()) == [
        ("name", "f"),
        ("description", "d"),
        ("parameters", parameters),
        ("response", {"a": 1}),
    ]
    assert made[1]["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.fixture
def render(with_templates: Callable[..., Any], byte_level: Tokenizer) -> Callable[..., Prompt]:
    def call(source: str, messages: list[Message]) -> Prompt:
        template = ChatTemplate(jinja=source)
        made: Prompt = with_templates(lambda t: render_chat(t, template, byte_level, messages))
        return made

    return call


def test_a_template_gets_arguments_in_the_form_it_takes(render: Callable[..., Prompt]) -> None:
    assert HERMES is not None
    messages = list(canonical([Message("assistant", "", tool_calls=CALLS)], HERMES))
    messages += [Message("user", "go")]
    assert 'f {"x": 1};g {"y": 2};' in render(TEXT_ARGUMENTS, messages).text
    assert "x=1;y=2;" in render(INDIRECT, messages).text


def test_blocks_have_anchors_at_their_marks(
    render: Callable[..., Prompt], byte_level: Tokenizer
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    prompt = render(
        BLOCKS,
        [
            Message("user", "hi"),
            Message("assistant", "so", thinking="hm <think>", tool_calls=(call, call)),
            Message("tool", "result"),
            Message("user", "go"),
        ],
    )
    cut = [byte_level.decode(prompt.token_ids[at:], special=True)[:11] for at in prompt.anchors]
    assert "<think>\nhm " in cut  # reasoning starts at its mark
    before = [byte_level.decode(prompt.token_ids[:at], special=True) for at in prompt.anchors]
    assert any(text.endswith("hm <think>\n</think>") for text in before)  # and ends behind it
    assert sum(text.startswith("<tool_call>") for text in cut) == 2  # each call by itself
    assert any(text.endswith(json.dumps(call["function"]) + "\n<|im_end|>") for text in before)
    assert any(text.endswith("tool\nresult") for text in before)
    forged = byte_level.encode("<think>", special=True)[0]
    assert list(prompt.token_ids).count(forged) == 1


def test_tokens_that_close_a_block_are_those_of_the_format(byte_level: Tokenizer) -> None:
    found = closing_ids(byte_level, HERMES)
    assert "</think>" in [byte_level.decode([idx], special=True) for idx in found]
    assert closing_ids(byte_level, format_named("plain")) == ()

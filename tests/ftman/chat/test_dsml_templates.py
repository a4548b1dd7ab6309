"""The templates we wrote for DeepSeek models that bring none: prompts, calls, results, thinking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftman.catalog.modelfile import parse_modelfile
from ftman.chat.formats.registry import detect
from ftman.chat.go_chat import render_messages
from ftman.chat.go_template import GoTemplate
from ftman.chat.types import Message

ROOT = Path(__file__).parents[3]
BLOCKS = {"deepseek-v3.2": "function_calls", "deepseek-v4-flash": "tool_calls"}
MARK = "｜DSML｜"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a day.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"function": {"name": "weather", "arguments": {"city": '"Paris"', "days": 2}}}


def template_text(name: str) -> str:
    path = ROOT / "modelfiles" / f"{name}.Modelfile"
    parsed = parse_modelfile(path.read_bytes(), path.name)
    (found,) = [item.value for item in parsed.instructions if item.command == "template"]
    return found


def rendered(name: str, messages: list[Message], **values: Any) -> str:
    return str(render_messages(GoTemplate.parse(template_text(name)), messages, values))


@pytest.mark.parametrize("name", BLOCKS)
def test_turns_and_the_thinking_switch(name: str) -> None:
    talk = [
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello", thinking="old"),
        Message("user", "Why?"),
    ]
    start = (
        "Be brief.<｜User｜>Hi<｜Assistant｜></think>Hello<｜end▁of▁sentence｜>"
        "<｜User｜>Why?<｜Assistant｜>"
    )
    assert rendered(name, talk) == start + "<think>"
    assert rendered(name, talk, think=True) == start + "<think>"
    assert rendered(name, talk, think=False) == start + "</think>"


@pytest.mark.parametrize("name", BLOCKS)
def test_calls_are_written_as_the_parser_reads_them(name: str) -> None:
    block = BLOCKS[name]
    talk = [
        Message("user", "Weather?"),
        Message("assistant", "", thinking="a call", tool_calls=(CALL,)),
        Message("tool", "sunny"),
        Message("tool", "warm"),
    ]
    text = rendered(name, talk, tools=[TOOL])
    assert '"name": "weather"' in text or '"name":"weather"' in text
    expected = (
        f'<think>a call</think>\n\n<{MARK}{block}>\n<{MARK}invoke name="weather">\n'
        f'<{MARK}parameter name="city" string="true">"Paris"</{MARK}parameter>\n'
        f'<{MARK}parameter name="days" string="false">2</{MARK}parameter>\n'
        f"</{MARK}invoke>\n</{MARK}{block}><｜end▁of▁sentence｜>"
    )
    assert expected in text
    results = {
        "deepseek-v3.2": "\n\n<function_results>\n<result>sunny</result>\n<result>warm</result>\n"
        "</function_results>\n\n<think>",
        "deepseek-v4-flash": "<｜User｜><tool_result>sunny</tool_result>"
        "<tool_result>warm</tool_result><｜Assistant｜><think>",
    }
    assert text.endswith(results[name])


@pytest.mark.parametrize("name", BLOCKS)
def test_the_format_is_found_by_the_template(name: str) -> None:
    assert detect(template_text(name)).name == "deepseek_dsml"

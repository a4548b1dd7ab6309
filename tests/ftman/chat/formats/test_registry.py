"""Which format a template or a name means; what a wish to think becomes; what our files declare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ftman
from ftman.catalog.modelfile import parse_modelfile
from ftman.chat.formats.registry import ALIASES, FORMATS, detect, format_named, with_calls
from ftman.chat.formats.switch import think_values
from ftman.chat.render import ChatTemplate, capabilities_of

MODELFILES = sorted((Path(ftman.__file__).parents[1] / "modelfiles").glob("*.Modelfile"))

# The marks that the templates of each family write, as their models write them.
TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>",
    "deepseek_dsml": "<｜DSML｜function_calls>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ n }}<｜tool▁sep｜>{{ a }}",
    "kimi": "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ a }}<|tool_call_end|>",
    "minimax": "<minimax:tool_call>\n<invoke name={{ n }}>",
    "minimax_m3": "{%- set ns = ']<]minimax[>[' %}{{ ns }}<tool_call><mm:think></mm:think>",
    "glm": "<tool_call>{{ n }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>",
    "qwen3_coder": "<tool_call>\n<function={{ n }}>\n<parameter={{ k }}>\n<think></think>",
    "gemma": "<|tool_call>call:{{ n }}{}<tool_call|>",
    "mistral": "[TOOL_CALLS]{{ n }}[ARGS]{{ a }}",
    "granite": "<|start_of_role|>tools<|end_of_role|>{{ tools | tojson }}<|tool_call|>",
    "command": '<|START_ACTION|>[{"tool_name": n, "parameters": a}]<|END_ACTION|>',
    "muse": "<|start|>assistant to={{ n }}<|message|><atem:function_calls>",
    "solar": "<|tool_call:begin|>{{ id }}<|tool_call:name|>{{ n }}<|tool_call:args|>{{ a }}",
    "lfm2": "List of tools: <|tool_list_start|>[{{ tools }}]<|tool_list_end|>",
    "llama4": "<|header_start|>system<|header_end|>{{ tools }}",
    "hy3": "{%- set toolsep_token = '<tool_sep{}>'.format(HYTK) %}",
    "hunyuan": '<answer><tool_calls>[{"name": n, "arguments": a}]</tool_calls></answer>',
    "jamba": '<tool_calls>[{"name": n, "arguments": a}]</tool_calls>',
    "hermes": '<tool_call>\n{"name": {{ n }}, "arguments": {{ a }}}\n</tool_call><think></think>',
    "llama3": '<|start_header_id|>{"name": n, "parameters": a}{{ tools }}',
    "think": "{{ content.split('</think>')[-1] }}<think>",
    "plain": "{{ m.content }}<|im_end|>",
}


def test_every_format_is_found_by_what_its_templates_hold() -> None:
    assert set(TEMPLATES) == {fmt.name for fmt in FORMATS}
    assert {name: detect(text).name for name, text in TEMPLATES.items()} == {
        name: name for name in TEMPLATES
    }


def test_names_ours_and_ollamas() -> None:
    assert [format_named(fmt.name) for fmt in FORMATS] == list(FORMATS)
    assert all(format_named(alias) is not None for alias in ALIASES)
    assert format_named("no-such") is None


@pytest.mark.parametrize("path", MODELFILES, ids=lambda path: path.stem)
def test_our_modelfiles_declare_formats_that_exist(path: Path) -> None:
    declared = parse_modelfile(path.read_bytes()).last("parser")
    assert declared is None or format_named(declared) is not None


@pytest.mark.parametrize(
    ("name", "template", "think", "values", "notes"),
    [
        ("hermes", "enable_thinking", None, {}, 0),
        ("hermes", "enable_thinking", False, {"think": False, "enable_thinking": False}, 0),
        ("hermes", "enable_thinking", True, {"think": True, "enable_thinking": True}, 0),
        ("hermes", "no switch", False, {"think": False, "enable_thinking": False}, 1),
        (
            "hermes",
            "enable_thinking",
            "low",
            {"think": "low", "enable_thinking": True, "reasoning_effort": "low"},
            1,
        ),
        ("harmony", "reasoning_effort", False, {"think": False, "reasoning_effort": "low"}, 1),
        ("harmony", "reasoning_effort", True, {"think": True, "reasoning_effort": "medium"}, 0),
        ("harmony", "reasoning_effort", "max", {"think": "max", "reasoning_effort": "high"}, 0),
        (
            "deepseek_v3",
            "if thinking",
            False,
            {"think": False, "thinking": False, "enable_thinking": False},
            0,
        ),
        ("minimax", "anything", False, {"think": False}, 1),
        ("minimax_m3", "thinking_mode", False, {"think": False, "thinking_mode": "disabled"}, 0),
        ("minimax_m3", "thinking_mode", True, {"think": True, "thinking_mode": "enabled"}, 0),
        ("minimax_m3", "thinking_mode", "low", {"think": "low", "thinking_mode": "adaptive"}, 0),
        ("muse", "reasoning_strength", "max", {"think": "max", "reasoning_strength": "xhigh"}, 0),
        ("hy3", "reasoning_effort", False, {"think": False, "reasoning_effort": "no_think"}, 0),
        ("command", "reasoning", False, {"think": False, "reasoning": False}, 0),
        ("mistral", "reasoning_effort", False, {"think": False, "reasoning_effort": "none"}, 0),
        ("hermes", "{{ if and .IsThinkSet (not .Think) }}", False,
         {"think": False, "enable_thinking": False}, 0),
    ],
)  # fmt: skip
def test_a_wish_to_think_becomes_what_the_template_reads(
    name: str, template: str, think: bool | str | None, values: dict[str, Any], notes: int
) -> None:
    fmt = format_named(name)
    assert fmt is not None
    found, noted = think_values(fmt, template, think)
    assert (found, len(noted)) == (values, notes)


def test_capabilities_follow_the_format_too() -> None:
    harmony = ChatTemplate(jinja=TEMPLATES["harmony"] + "{{ tools }}")
    assert capabilities_of(harmony) == ("completion", "tools", "thinking")
    declared = capabilities_of(ChatTemplate(jinja="{{ messages }}"), "harmony")
    assert declared == ("completion", "tools", "thinking")


def test_tools_of_an_unknown_form_are_called_in_bare_json() -> None:
    made = with_calls(detect(TEMPLATES["think"]))
    assert made.name == "think+json"
    assert made.reasoning is not None
    assert made.calls is not None
    assert with_calls(detect(TEMPLATES["glm"])) == detect(TEMPLATES["glm"])

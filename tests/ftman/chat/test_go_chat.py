"""Whole conversations through templates in the manner of the well-known model families."""
# ruff: noqa: E501 - tables of templates and what they give

from __future__ import annotations

from typing import Any

import pytest

from ftman.chat.go_chat import render_insert, render_messages
from ftman.chat.go_template import GoTemplate
from ftman.chat.traced import content_origin, runs_of
from ftman.chat.types import Message

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather now",
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {
                "unit": {"type": "string", "enum": ["c", "f"]},
                "city": {"type": ["string", "null"], "description": "Where"},
            },
        },
    },
}
CALL = {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Köln", "a": 1}}}
TALK = [
    Message("system", "S"), Message("user", "u1"), Message("assistant", "a1"), Message("user", "u2"),
]  # fmt: skip
TOOL_TALK = [
    Message("user", "Weather?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "12 degrees", tool_name="weather"),
]
CHATML = (
    "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end -}}"
    "<|im_start|>assistant\n"
)
CHATML_LEGACY = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ if .Prompt }}"
    "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
    "{{ .Response }}<|im_end|>\n"
)
LLAMA3 = (
    "{{- if .System }}<|h|>system<|/h|>\n\n{{ .System }}<|eot|>{{ end }}"
    "{{- range $i, $m := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}"
    '{{- if eq .Role "user" }}<|h|>user<|/h|>\n\n{{ .Content }}<|eot|>'
    "{{ if $last }}<|h|>assistant<|/h|>\n\n{{ end }}"
    '{{- else if eq .Role "assistant" }}<|h|>assistant<|/h|>\n\n{{ .Content }}'
    "{{ if not $last }}<|eot|>{{ end }}{{- end }}{{- end }}"
)
MISTRAL = (
    '{{- range $index, $_ := .Messages }}{{- if eq .Role "user" }}'
    "{{- if and (le (len (slice $.Messages $index)) 2) $.Tools }}[TOOLS]{{ $.Tools }}[/TOOLS]{{ end }}"
    "[INST]{{ if and (eq (len (slice $.Messages $index)) 1) $.System }} {{ $.System }}\n\n{{ end }}"
    " {{ .Content }}[/INST]"
    '{{- else if eq .Role "assistant" }}{{ if .Content }} {{ .Content }}</s>'
    '{{ else if .ToolCalls }}[CALLS][{{ range .ToolCalls }}{"name": "{{ .Function.Name }}",'
    ' "arguments": {{ .Function.Arguments }}}{{ end }}]</s>{{ end }}'
    '{{- else if eq .Role "tool" }}[RESULT]{"content": {{ json .Content }}}[/RESULT]'
    "{{- end }}{{- end }}"
)
LLAMA2 = "[INST] {{ if .System }}<<SYS>>\n{{ .System }}\n<</SYS>>\n\n{{ end }}{{ .Prompt }} [/INST] {{ .Response }}</s>"
ALPACA = (
    "{{- if .System }}{{ .System }}\n\n{{ end }}{{- if .Prompt }}### Instruction:\n{{ .Prompt }}\n\n"
    "{{ end }}### Response:\n{{ .Response }}\n\n"
)
VICUNA = "{{ .System }}\nUSER: {{ .Prompt }}\nASSISTANT: "
ZEPHYR = "{{- range .Messages }}<|{{ .Role }}|>\n{{ .Content }}</s>\n{{ end }}<|assistant|>\n"
GEMMA = (
    "{{- range $i, $_ := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}"
    '{{- if or (eq .Role "user") (eq .Role "system") }}<turn>user\n{{ .Content }}<end>\n'
    "{{ if $last }}<turn>model\n{{ end }}"
    '{{- else if eq .Role "assistant" }}<turn>model\n{{ .Content }}{{ if not $last }}<end>\n'
    "{{ end }}{{- end }}{{- end }}"
)
PHI = "{{ range .Messages }}<|{{ .Role }}|>\n{{ .Content }}<|end|>\n{{ end }}<|assistant|>\n"
TOOLS_JSON = (
    "{{- if .Tools }}# Tools\n{{- range .Tools }}\n{{ json . }}{{- end }}\n{{ end }}"
    "{{- range .Messages }}{{ .Role }}:{{ .Content }}{{ range .ToolCalls }}<call>"
    "{{ json .Function.Arguments }}</call>{{ end }};{{ end }}"
)
TOOLS_LONG = (
    "{{ range .Tools }}{{ with .Function }}{{ .Name }}({{ range $name, $p := .Parameters.Properties }}"
    "{{ $name }}: {{ toTypeScriptType $p }}{{ if $p.Enum }} {{ $p.Enum }}{{ end }}, {{ end }})"
    " // {{ .Description }} {{ .Parameters.Required }} {{ .Parameters.Type }}{{ end }}{{ end }}"
    "{{ range .Messages }}{{ end }}"
)
THINK = (
    "{{ if and .IsThinkSet .Think }}<on {{ .ThinkLevel }}>{{ else if .IsThinkSet }}<off>{{ end }}"
    "{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
    "{{ .Content }}|{{ end }}"
)
COMMAND = (
    '{{- range .Messages }}{{ if eq .Role "system" }}<S>{{ .Content }}</S>'
    '{{ else if eq .Role "user" }}<U>{{ .Content }}</U>'
    '{{ else if eq .Role "assistant" }}<C>{{ .Content }}</C>{{ end }}{{ end }}<C>'
)
BLOCKS = (
    '{{ define "turn" }}<{{ .Role }}>{{ .Content }}</{{ .Role }}>{{ end }}'
    '{{ range .Messages }}{{ template "turn" . }}{{ end }}<assistant>'
)
SOLAR = (
    "{{ if .System }}### System:\n{{ .System }}\n\n{{ end }}{{ if .Prompt }}### User:\n{{ .Prompt }}"
    "\n\n{{ end }}### Assistant:\n{{ .Response }}</s>\n\n"
)
GRANITE = (
    "{{ if .System }}System:\n{{ .System }}\n\n{{ end }}{{ if .Prompt }}Question:\n{{ .Prompt }}\n\n"
    "{{ end }}{{ if .Response }}Answer:\n{{ .Response }}\n\n{{ else }}Answer:\n{{ .Response }}{{ end }}"
)
OPENCHAT = (
    "{{ if .System }}{{ .System }}<|end|>{{ end }}GPT4 User: {{ .Prompt }}<|end|>GPT4 Assistant: "
    "{{ .Response }}<|end|>"
)
LAST_ONLY = (
    "{{ $n := len .Messages }}{{ range $i, $m := .Messages }}{{ if lt $i (len (slice $.Messages 1)) }}"
    '{{ continue }}{{ end }}{{ printf "%d/%d %s" $i $n .Content }}{{ end }}'
)

RENDERED: list[tuple[str, str, list[Message], dict[str, Any], str]] = [
    ("chatml", CHATML, TALK, {},
     "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\na1"
     "<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n"),
    ("chatml legacy", CHATML_LEGACY, TALK, {},
     "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\na1"
     "<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n"),
    ("chatml legacy, continued", CHATML_LEGACY, TALK[:3], {},
     "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\na1"),
    ("llama3", LLAMA3, TALK, {},
     "<|h|>system<|/h|>\n\nS<|eot|><|h|>user<|/h|>\n\nu1<|eot|><|h|>assistant<|/h|>\n\na1<|eot|>"
     "<|h|>user<|/h|>\n\nu2<|eot|><|h|>assistant<|/h|>\n\n"),
    ("llama3, continued", LLAMA3, TALK[:3], {},
     "<|h|>system<|/h|>\n\nS<|eot|><|h|>user<|/h|>\n\nu1<|eot|><|h|>assistant<|/h|>\n\na1"),
    ("llama2 legacy", LLAMA2, TALK, {},
     "[INST] <<SYS>>\nS\n<</SYS>>\n\nu1 [/INST] a1</s>[INST] u2 [/INST] "),
    ("mistral", MISTRAL, TALK, {}, "[INST] u1[/INST] a1</s>[INST] S\n\n u2[/INST]"),
    ("mistral tools", MISTRAL, TOOL_TALK, {},
     '[INST] Weather?[/INST][CALLS][{"name": "weather", "arguments": {"city":"Köln","a":1}}]</s>'
     '[RESULT]{"content": "12 degrees"}[/RESULT]'),
    ("mistral offers tools", MISTRAL, TOOL_TALK[:1], {"tools": [{"type": "function"}]},
     '[TOOLS][{"type":"function"}][/TOOLS][INST] Weather?[/INST]'),
    ("alpaca legacy", ALPACA, TALK, {},
     "S\n\n### Instruction:\nu1\n\n### Response:\na1\n\n### Instruction:\nu2\n\n### Response:\n"),
    ("vicuna, reply appended", VICUNA, TALK, {},
     "S\nUSER: u1\nASSISTANT: a1\nUSER: u2\nASSISTANT: "),
    ("zephyr", ZEPHYR, TALK[1:], {},
     "<|user|>\nu1</s>\n<|assistant|>\na1</s>\n<|user|>\nu2</s>\n<|assistant|>\n"),
    ("gemma", GEMMA, TALK, {},
     "<turn>user\nS<end>\n<turn>user\nu1<end>\n<turn>model\na1<end>\n<turn>user\nu2<end>\n<turn>model\n"),
    ("phi", PHI, TALK[3:], {}, "<|user|>\nu2<|end|>\n<|assistant|>\n"),
    ("solar legacy", SOLAR, TALK, {},
     "### System:\nS\n\n### User:\nu1\n\n### Assistant:\na1</s>\n\n### User:\nu2\n\n### Assistant:\n"),
    ("granite legacy", GRANITE, TALK[3:], {}, "Question:\nu2\n\n"),
    ("openchat legacy", OPENCHAT, TALK, {},
     "S<|end|>GPT4 User: u1<|end|>GPT4 Assistant: a1<|end|>GPT4 User: u2<|end|>GPT4 Assistant: "),
    ("command", COMMAND, TALK, {}, "<S>S</S><U>u1</U><C>a1</C><U>u2</U><C>"),
    ("define and template", BLOCKS, TALK[3:], {}, "<user>u2</user><assistant>"),
    ("last only", LAST_ONLY, TALK, {}, "3/4 u2"),
    ("tools as JSON", TOOLS_JSON, TOOL_TALK, {"tools": [WEATHER]},
     '# Tools\n{"type":"function","function":{"name":"weather","description":"Weather now",'
     '"parameters":{"type":"object","required":["city"],"properties":{"unit":{"type":"string",'
     '"enum":["c","f"]},"city":{"type":["string","null"],"description":"Where"}}}}}\n'
     'user:Weather?;assistant:<call>{"city":"Köln","a":1}</call>;tool:12 degrees;'),
    ("tools in words", TOOLS_LONG, TALK, {"tools": [WEATHER]},
     "weather(city: string | null, unit: string [c f], ) // Weather now [city] object"),
    ("no thinking setting", THINK, [Message("user", "x")], {}, "x|"),
    ("thinking off", THINK, [Message("user", "x")], {"think": False}, "<off>x|"),
    ("thinking on", THINK, [Message("user", "x"), Message("assistant", "y", thinking="z")],
     {"think": True}, "<on medium>x|<think>z</think>y|"),
    ("thinking level", THINK, [Message("user", "x")], {"think": "high"}, "<on high>x|"),
    ("no template", "{{ .Prompt }}", TALK[3:], {}, "u2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "messages", "values", "expected"),
    [case[1:] for case in RENDERED],
    ids=[case[0] for case in RENDERED],
)
def test_conversations_render_as_the_family_expects(
    source: str, messages: list[Message], values: dict[str, Any], expected: str
) -> None:
    assert render_messages(GoTemplate.parse(source), messages, values) == expected


def test_neighbours_of_one_role_are_joined_but_tool_results_are_not() -> None:
    messages = [
        Message("user", "a"), Message("user", "b"), Message("assistant", "c"),
        Message("tool", "1"), Message("tool", "2"), Message("user", ""), Message("user", "d"),
    ]  # fmt: skip
    source = "{{ range .Messages }}{{ .Role }}={{ .Content }};{{ end }}"
    text = render_messages(GoTemplate.parse(source), messages, {})
    assert text == "user=a\n\nb;assistant=c;tool=1;tool=2;user=\n\nd;"


def test_all_system_texts_are_joined_for_the_template() -> None:
    messages = [Message("system", "A"), Message("user", "u"), Message("system", "B")]
    text = render_messages(
        GoTemplate.parse("{{ .System }}{{ range .Messages }}{{ end }}"), messages, {}
    )
    assert text == "A\n\nB"


def test_a_late_system_text_starts_a_new_legacy_turn() -> None:
    messages = [Message("user", "u"), Message("assistant", "a"), Message("system", "S"),
                Message("user", "v")]  # fmt: skip
    text = render_messages(
        GoTemplate.parse("[{{ .System }}|{{ .Prompt }}|{{ .Response }}]"), messages, {}
    )
    assert text == "[|u|a][S|v|"


def test_insert_mode_sees_prompt_and_suffix_only() -> None:
    source = "{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ else }}{{ .Prompt }}{{ end }}"
    text = render_insert(GoTemplate.parse(source), "def f(", "return", {})
    assert text == "<P>def f(<S>return<M>"


def test_contents_know_their_message() -> None:
    text = render_messages(GoTemplate.parse(CHATML), TALK, {})
    at = 0
    pieces = {}
    for length, origin in runs_of(text):
        pieces.setdefault(origin, []).append(str(text[at : at + length]))
        at += length
    for idx, message in enumerate(TALK):
        assert pieces[content_origin(idx)] == [message.content]


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        (THINK, ("<think>", "</think>")),
        (
            "{{ range .Messages }}{{ if .Thinking }}\n<t>\n{{ .Thinking }}\n</t>{{ end }}{{ end }}",
            ("<t>", "</t>"),
        ),
        ("{{ range .Messages }}{{ .Thinking }}{{ end }}", None),
        ("{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}", None),
    ],
)
def test_thinking_tags_are_the_texts_around_the_thinking(
    source: str, tags: tuple[str, str] | None
) -> None:
    assert GoTemplate.parse(source).thinking_tags() == tags

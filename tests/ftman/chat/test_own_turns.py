"""Replies that come back are the ids that were generated, whatever form the client gave them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ftman.chat.conversation import canonical
from ftman.chat.formats.base import ChatFormat
from ftman.chat.formats.registry import format_named
from ftman.chat.own_turns import OwnReplies
from ftman.chat.remembered import Remembered, ReplyMemory, Said
from ftman.chat.render import ChatTemplate, render_chat
from ftman.chat.reply import Reply, ReplyRules
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import Message, Prompt, Tool

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}, "name": {"type": "string"}}}
TOOLS = (Tool("look", "Looks", INTEGER), Tool("write", "", INTEGER))
_TURNS = (
    "{%- set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{%- for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>{{ m.content }}</tool_response>"
    "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and KEEPS %}<think>\n{{ m.reasoning_content | trim }}\n</think>\n\n"
    "{% endif %}{{ m.content | trim }}{% for call in m.tool_calls or [] %}\n<tool_call>\nCALL\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPENS{% endif %}"
)
_JSON = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
_XML = (
    "<function={{ call.function.name }}>\n{% for k, v in call.function.arguments | items %}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>"
)


def chatml(call: str, keeps: str = "true", opens: str = "") -> str:
    """A ChatML template with thinking and calls."""
    return _TURNS.replace("CALL", call).replace("KEEPS", keeps).replace("OPENS", opens)


HARMONY = (
    "{%- set ns = namespace(call='') %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}{% if m.tool_calls %}{% set ns.call = m.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ ns.call }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ ns.call }} to=assistant<|channel|>commentary"
    "<|message|>{{ m.content | tojson }}<|end|>{% else %}<|start|>{{ m.role }}<|message|>"
    "{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def written(fmt: str, said: Said, draw: random.Random) -> str:
    """What a model would write, in a layout of its own."""
    calls = [(name, json.loads(arguments)) for name, arguments in said.calls]
    if fmt == "harmony":
        thought = f"<|channel|>analysis<|message|>{said.thinking}<|end|><|start|>assistant"
        if not calls:
            return f"{thought}<|channel|>final<|message|>{said.text}"
        head = f"{thought}<|channel|>commentary to=functions.{calls[0][0]} <|constrain|>json"
        return f"{head}<|message|>{json.dumps(calls[0][1], separators=(',', ':'))}"
    parts = [f"<think>{draw.choice(['', chr(10)])}{said.thinking}\n</think>\n\n{said.text}"]
    for name, arguments in calls:
        if fmt == "hermes":
            gap = draw.choice([(",", ":"), (", ", ": ")])
            body = json.dumps({"name": name, "arguments": arguments}, separators=gap)
        else:
            rows = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
            body = f"<function={name}>\n{rows}</function>"
        parts.append(f"{draw.choice(['', chr(10)])}<tool_call>\n{body}\n</tool_call>")
    return "".join(parts) + draw.choice(["", "\n"])


def torn(tokenizer: Tokenizer, text: str, draw: random.Random) -> list[int]:
    """Ids of a text as no encoder would choose them; marks stay whole."""
    ids: list[int] = []
    for piece in re.split(r"(<[^<>\s]*>)", text):
        if piece.startswith("<") or not piece:
            ids += tokenizer.encode(piece, special=True)
            continue
        at = 0
        while at < len(piece):
            size = draw.randint(1, 6)
            ids += tokenizer.encode(piece[at : at + size])
            at += size
    return ids


@dataclass
class Talk:
    """A conversation of one client with one model, and what its memory has."""

    tokenizer: Tokenizer
    template: str
    fmt: ChatFormat
    render: Callable[..., Any]
    memory: ReplyMemory = field(default_factory=ReplyMemory)
    scope: str = "model key"
    messages: list[Message] = field(default_factory=list)

    @property
    def own(self) -> OwnReplies:
        ends = ("<|im_end|>", "</s>", *self.fmt.ends)
        return OwnReplies(self.memory, self.scope, self.fmt, TOOLS, ends)

    def prompt(self, *, remembers: bool = True, template: str = "") -> Prompt:
        made: Prompt = self.render(
            lambda t: render_chat(
                t,
                ChatTemplate(jinja=template or self.template),
                self.tokenizer,
                canonical(self.messages, self.fmt),
                own=self.own if remembers else None,
            )
        )
        return made

    def hear(self, prompt: Prompt, raw: str, draw: random.Random) -> list[int]:
        """The model answers; returns the ids."""
        ids = torn(self.tokenizer, raw, draw)
        reply = Reply(self.tokenizer, ReplyRules(self.fmt, TOOLS), ())
        events = reply.feed(_Tokens(ids)) + reply.finish()
        self.own.keep(self.tokenizer, prompt, ids, Said.in_events(events))
        return ids


@dataclass(frozen=True)
class _Tokens:
    token_ids: list[int]
    logprobs: tuple[Any, ...] = ()


def sent_back(said: Said, number: int, draw: random.Random, *, keeps: bool) -> Message:
    """The turn as a client has it: other call ids, other key order, text trimmed or not."""
    calls = []
    for idx, (name, arguments) in enumerate(said.calls):
        pairs = list(json.loads(arguments).items())
        draw.shuffle(pairs)
        given = dict(pairs) if draw.random() < 0.5 else json.dumps(dict(pairs), indent=1)
        function = {"name": name, "arguments": given}
        calls.append({"id": f"client-{number}-{idx}", "function": function})
    text = said.text + draw.choice(["", " ", "\n"])
    thinking = said.thinking if keeps else ""
    return Message("assistant", text, thinking=thinking, tool_calls=tuple(calls))


def words(draw: random.Random, num: int) -> str:
    return " ".join(draw.choice(["so", "the file", "1 < 2", "Grüße", "東京", "{x}"]) for _ in range(num))  # fmt: skip  # noqa: E501


def some_reply(fmt: str, number: int, draw: random.Random) -> Said:
    called = draw.random() < 0.6
    text = "" if called and fmt == "harmony" else f"{words(draw, 2)} {number}"
    calls = [
        (draw.choice(TOOLS).name, json.dumps({"name": words(draw, 1), "x": draw.randint(0, 99)}))
        for _ in range(called * draw.randint(1, 1 if fmt == "harmony" else 2))
    ]
    return Said(f"{words(draw, 3)} {number}", text, tuple(calls))


CASES = {
    "hermes": ("hermes", chatml(_JSON)),
    "hermes-opens": ("hermes", chatml(_JSON, opens="<think>\n")),
    "qwen3_coder": ("qwen3_coder", chatml(_XML)),
    "harmony": ("harmony", HARMONY),
}


@pytest.fixture
def talk(byte_level: Tokenizer, with_templates: Callable[..., Any]) -> Callable[[str, str], Talk]:
    def build(fmt: str, template: str) -> Talk:
        found = format_named(fmt)
        assert found is not None
        return Talk(byte_level, template, found, with_templates)

    return build


@pytest.mark.parametrize("turns", [12, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_each_prompt_goes_on_exactly_where_the_last_reply_ended(
    talk: Callable[[str, str], Talk], case: str, turns: int
) -> None:
    fmt, template = CASES[case]
    draw = random.Random(case)
    run = talk(fmt, template)
    run.messages = [Message("system", "Be brief."), Message("user", "Go <|im_end|> on")]
    before: list[int] = []
    for number in range(turns):
        prompt = run.prompt()
        assert list(prompt.token_ids[: len(before)]) == before
        tail = run.tokenizer.decode(prompt.token_ids[len(before) :], special=True)
        assert prompt.text.endswith(tail)
        said = some_reply(fmt, number, draw)
        raw = written(fmt, said, draw)
        if case == "hermes-opens":
            raw = raw.removeprefix("<think>").removeprefix("\n")
            said_ids = torn(run.tokenizer, raw, draw)
            run.own.keep(run.tokenizer, prompt, said_ids, said)
        else:
            said_ids = run.hear(prompt, raw, draw)
        before = [*prompt.token_ids, *said_ids]
        turn = sent_back(said, number, draw, keeps=True)
        run.messages.append(turn)
        for call in turn.tool_calls:
            run.messages.append(Message("tool", words(draw, 4), tool_call_id=call["id"]))
        if not turn.tool_calls:
            run.messages.append(Message("user", words(draw, 3)))


@pytest.mark.parametrize("name", ["sentencepiece-first", "sentencepiece-legacy", "byte-level-post"])
def test_every_kind_of_tokenizer_goes_on_where_the_reply_ended(
    folders: dict[str, Path], with_templates: Callable[..., Any], name: str
) -> None:
    draw = random.Random(name)
    fmt = format_named("hermes")
    assert fmt is not None
    run = Talk(Tokenizer.load(folders[name]), chatml(_JSON), fmt, with_templates)
    run.messages = [Message("user", "Go")]
    before: list[int] = []
    for number in range(4):
        prompt = run.prompt()
        assert list(prompt.token_ids[: len(before)]) == before
        said = replace(some_reply("hermes", number, draw), calls=())
        raw = f"<think>{said.thinking}</think>\n\n{said.text}"
        ids = run.tokenizer.encode(raw, special=True)
        run.own.keep(run.tokenizer, prompt, ids, said)
        before = [*prompt.token_ids, *ids]
        run.messages += [sent_back(said, number, draw, keeps=True), Message("user", f"n {number}")]


def test_what_the_template_cuts_stays_cut_and_all_before_it_is_the_same(
    talk: Callable[[str, str], Talk],
) -> None:
    draw = random.Random(5)
    run = talk("hermes", chatml(_JSON, keeps="loop.index0 > ns.last"))
    run.messages = [Message("user", "Go")]
    opened = run.prompt()
    before = list(opened.token_ids)
    for number in range(5):
        prompt = run.prompt()
        assert list(prompt.token_ids[: len(before)]) == before
        said = replace(some_reply("hermes", number, draw), calls=())
        run.hear(prompt, written("hermes", said, draw), draw)
        before = list(prompt.token_ids)
        run.messages += [sent_back(said, number, draw, keeps=True), Message("user", f"n {number}")]
        following = run.prompt()
        assert said.thinking not in following.text
        assert "<think>" not in run.tokenizer.decode(following.token_ids, special=True)


@pytest.mark.parametrize(
    "change",
    [{"content": "So: 8"}, {"thinking": "no"}, {"tool_calls": ()}],
    ids=["text", "thinking", "calls"],
)
def test_a_turn_that_says_something_else_is_encoded_anew(
    talk: Callable[[str, str], Talk], change: dict[str, Any]
) -> None:
    draw = random.Random(1)
    run = talk("hermes", chatml(_JSON))
    run.messages = [Message("user", "Go")]
    said = Said("hm", "So: 7", (("look", json.dumps({"x": 1})),))
    run.hear(run.prompt(), written("hermes", said, draw), draw)
    turn = sent_back(said, 0, draw, keeps=True)
    rest = Message("user", "next")
    run.messages = [Message("user", "Go"), turn, rest]
    assert run.prompt().token_ids != run.prompt(remembers=False).token_ids
    run.messages = [Message("user", "Go"), replace(turn, **change), rest]
    assert run.prompt() == run.prompt(remembers=False)


def test_a_template_that_leaves_a_call_out_is_obeyed(talk: Callable[[str, str], Talk]) -> None:
    draw = random.Random(2)
    run = talk("hermes", chatml(_JSON))
    run.messages = [Message("user", "Go")]
    said = Said("hm", "So", (("look", json.dumps({"x": 1})),))
    run.hear(run.prompt(), written("hermes", said, draw), draw)
    run.messages += [sent_back(said, 0, draw, keeps=True), Message("user", "next")]
    bare = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    source = f"{{% for m in messages %}}{bare}{{% endfor %}}<|im_start|>assistant\n"
    source += "{# tool_calls arguments #}"
    assert run.prompt(template=source) == run.prompt(template=source, remembers=False)


def test_nobody_elses_reply_is_used(talk: Callable[[str, str], Talk]) -> None:
    draw = random.Random(3)
    run = talk("hermes", chatml(_JSON))
    run.messages = [Message("user", "Go")]
    said = Said("hm", "The answer is 7")
    run.hear(run.prompt(), written("hermes", said, draw), draw)
    run.messages += [sent_back(said, 0, draw, keeps=True), Message("user", "next")]
    mine = run.prompt()
    run.scope = "model another"
    assert run.prompt() == run.prompt(remembers=False) != mine


def test_of_replies_that_say_the_same_the_one_with_the_same_reasoning_is_used(
    talk: Callable[[str, str], Talk],
) -> None:
    draw = random.Random(4)
    run = talk("hermes", chatml(_JSON))
    run.messages = [Message("user", "Go")]
    prompt = run.prompt()
    turns = [Said(f"thought {number}", "OK") for number in range(3)]
    replies = [run.hear(prompt, written("hermes", said, draw), draw) for said in turns]
    for said, ids in zip(turns, replies, strict=True):
        run.messages = [Message("user", "Go"), sent_back(said, 0, draw, keeps=True)]
        run.messages.append(Message("user", "next"))
        whole = [*prompt.token_ids, *ids]
        assert list(run.prompt().token_ids[: len(whole)]) == whole


def test_marks_in_a_reply_and_anchors_keep_their_places(
    talk: Callable[[str, str], Talk],
) -> None:
    draw = random.Random(6)
    run = talk("hermes", chatml(_JSON))
    run.messages = [Message("user", "Go")]
    said = Said("hm", "one two three", (("look", json.dumps({"x": 1})),))
    opened = run.prompt()
    ids = run.hear(opened, written("hermes", said, draw), draw)
    run.messages += [sent_back(said, 0, draw, keeps=True), Message("user", "next")]
    prompt = run.prompt()
    assert list(prompt.anchors) == sorted(set(prompt.anchors))
    starts = [i for i, token in enumerate(prompt.token_ids)
              if run.tokenizer.token_text(token) == "<|im_start|>"]  # fmt: skip
    assert {*starts[1:]} <= {*prompt.anchors}
    end = len(opened.token_ids) + len(ids)
    assert run.tokenizer.token_text(prompt.token_ids[end]) == "<|im_end|>"


def kept(memory: ReplyMemory, text: str, ids: list[int]) -> bytes:
    said = Said(text=text)
    memory.keep("m", Remembered(ids, said.key, b"", "", "", ()))
    return said.key


def test_the_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    memory = ReplyMemory(max_tokens=30)
    first, second = kept(memory, "a", [1] * 10), kept(memory, "b", [2] * 10)
    third = kept(memory, "c", [3] * 10)
    assert memory.find("m", first)
    fourth = kept(memory, "d", [4] * 10)
    assert [bool(memory.find("m", key)) for key in (first, second, third, fourth)] == [
        True, False, True, True,
    ]  # fmt: skip
    for number in range(50):
        kept(memory, "same", [number] * 3)
        kept(memory, "twice", [7] * 3)
    assert len(memory.find("m", Said(text="twice").key)) == 1
    assert memory.num_tokens <= 30
    kept(memory, "huge", [5] * 31)
    assert memory.num_tokens == 0

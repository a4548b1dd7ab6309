"""Every transcript, whole, split at every character and cut at every character."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftman.chat.formats.output import OutputParser
from ftman.chat.formats.registry import FORMATS, format_named
from ftman.chat.types import TextDelta, ThinkingDelta, TokenText, ToolCall, ToolCallDelta
from tests.ftman.chat.formats.transcripts import TOOLS, TRANSCRIPTS, Transcript

each_transcript = pytest.mark.parametrize("case", TRANSCRIPTS, ids=str)


@dataclass
class Read:
    """What a client would have after the events of one reply."""

    text: str = ""
    thinking: str = ""
    arguments: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    whole: dict[int, tuple[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def add(self, event: object) -> None:
        if isinstance(event, TextDelta):
            self.text += event.text
        elif isinstance(event, ThinkingDelta):
            self.thinking += event.text
        elif isinstance(event, ToolCallDelta):
            if event.index == len(self.arguments):
                assert all((event.id, event.name)), "the first delta of a call names it"
                self.arguments.append("")
                self.names.append(event.name)
                self.ids.append(event.id)
            else:
                assert not any((event.id, event.name)), "a call is named once"
            assert event.index == len(self.arguments) - 1, "calls do not overlap"
            self.arguments[event.index] += event.arguments
        elif isinstance(event, ToolCall):
            assert event.index == len(self.arguments) - 1
            assert event.index not in self.whole
            assert (event.name, event.id) == (self.names[event.index], self.ids[event.index])
            assert json.loads(self.arguments[event.index]) == event.arguments
            self.whole[event.index] = (event.name, dict(event.arguments))

    @property
    def content(self) -> tuple[Any, ...]:
        return self.text, self.thinking, self.arguments, self.names, self.whole


def read(case: Transcript, pieces: Iterable[str], *, calls: bool = True) -> Read:
    fmt = format_named(case.format)
    assert fmt is not None
    parser = OutputParser(fmt, TOOLS if calls else None, inside_thinking=case.inside)
    found = Read()
    for piece in pieces:
        for event in parser.feed(TextDelta(piece)):
            found.add(event)
    for event in parser.finish():
        found.add(event)
    found.notes = parser.notes
    return found


@each_transcript
def test_a_reply_is_read_as_its_writer_meant_it(case: Transcript) -> None:
    found = read(case, [case.raw])
    assert (found.text, found.thinking) == (case.text, case.thinking)
    assert [found.whole[idx] for idx in range(len(found.whole))] == list(case.calls)
    assert len(found.arguments) == len(case.calls)
    assert not found.notes
    if case.ids:
        assert tuple(found.ids) == case.ids


@each_transcript
def test_every_split_gives_the_same(case: Transcript) -> None:
    whole = read(case, [case.raw]).content
    assert read(case, case.raw).content == whole
    for at in range(len(case.raw)):
        assert read(case, [case.raw[:at], case.raw[at:]]).content == whole


@each_transcript
def test_every_cut_ends_cleanly(case: Transcript) -> None:
    """What a cut reply gives is what the whole one began with; a mark or call that is not whole is
    text, or its arguments are closed, it has no ToolCall, and a note tells of it."""
    whole = read(case, [case.raw])
    for at in range(len(case.raw)):
        cut = read(case, [case.raw[:at]])
        assert _begins(cut.thinking, whole.thinking, case.raw[:at])
        assert _begins(cut.text, whole.text, case.raw[:at])
        assert cut.names == whole.names[: len(cut.names)]
        for index, arguments in enumerate(cut.arguments):
            assert isinstance(json.loads(arguments), dict)
            if index in cut.whole:
                assert cut.whole[index] == whole.whole[index]
        unfinished = len(cut.arguments) - len(cut.whole)
        assert unfinished == len(cut.notes) <= 1


def _begins(cut: str, whole: str, raw: str) -> bool:
    if whole.startswith(cut):
        return True
    common = next(
        (idx for idx, (a, b) in enumerate(zip(cut, whole, strict=False)) if a != b),
        min(len(cut), len(whole)),
    )
    return raw.rstrip().endswith(cut[common:].strip())


@each_transcript
def test_without_tools_nothing_is_a_call(case: Transcript) -> None:
    found = read(case, case.raw, calls=False)
    assert not found.arguments
    assert found.thinking == case.thinking


@each_transcript
def test_reasoning_tokens_and_texts_stay_together(case: Transcript) -> None:
    """With one token for each character: a token's event holds its character."""
    fmt = format_named(case.format)
    assert fmt is not None
    parser = OutputParser(fmt, TOOLS, inside_thinking=case.inside)
    events = []
    for idx, char in enumerate(case.raw):
        events += parser.feed(TextDelta(char, (TokenText(char, -float(idx), char.encode()),)))
    events += parser.finish()
    seen: list[float] = []
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta):
            assert event.text in "".join(token.text for token in event.tokens)
        seen += [-token.logprob for token in getattr(event, "tokens", ())]
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("name", [fmt.name for fmt in FORMATS])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_text_is_read_alike_however_it_is_split(name: str, data: st.DataObject) -> None:
    fmt = format_named(name)
    assert fmt is not None
    marks = [*fmt.visible, *(fmt.calls.opens if fmt.calls else ()), "{", "}", '"', ":", ",", "\n"]
    marks += ["now", "name", '{"name": "now", "arguments": {"a": [1, "x"]}}', "<parameter=k>", " "]
    raw = "".join(data.draw(st.lists(st.sampled_from(marks), max_size=14)))
    case = Transcript(name, "random", raw, inside=data.draw(st.booleans()))
    whole = read(case, [raw])
    assert read(case, raw).content == whole.content
    for arguments in whole.arguments:
        assert isinstance(json.loads(arguments), dict)
    assert len(whole.arguments) - len(whole.whole) == len(whole.notes)

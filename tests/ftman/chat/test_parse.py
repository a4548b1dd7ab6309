"""Stop strings at every split, code points, and log probabilities at their text."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftman.chat.parse import StopMatcher, TextStream
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import TextDelta


@dataclass(frozen=True)
class Chosen:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Event:
    token_ids: tuple[int, ...]
    logprobs: tuple[Chosen, ...] = ()


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One id for each byte of the text."""
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [by_byte[bytes([byte])] for byte in text.encode()]


def stream_of(
    tokenizer: Tokenizer, ids: list[int], chunks: list[int], stop: list[str], logprobs: bool = False
) -> tuple[list[TextDelta], TextStream]:
    stream = TextStream(tokenizer, stop)
    deltas, at = [], 0
    for size in [*chunks, len(ids)]:
        part = tuple(ids[at : at + size])
        at += size
        if part:
            chosen = tuple(Chosen(i, -float(i), ((i, -0.5),)) for i in part) if logprobs else ()
            deltas += stream.feed(Event(part, chosen))
    return deltas + stream.finish(), stream


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first stop to be complete wins; of those complete together, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


CASES = [
    ("Hello<|im_end|>more", ["<|im_end|>"]),
    ("Hello <|im_ end|>more", ["<|im_end|>"]),
    ("aaaaab", ["aab"]),
    ("über 😀 größe STOP x", ["größe", "STOP"]),
    ("abcabcabd!", ["abcabd", "bd!"]),
    ("one\n\nUser: two", ["\nUser:", "\n\nUser:"]),
    ("ends with part of <|im", ["<|im_end|>"]),
    ("x😀y", ["😀"]),
]


@pytest.mark.parametrize(("text", "stops"), CASES)
def test_every_byte_split_gives_the_same_text_and_stop(
    byte_level: Tokenizer, text: str, stops: list[str]
) -> None:
    ids = byte_ids(byte_level, text)
    expected = naive(text, stops)
    for first in range(len(ids) + 1):
        for chunks in ([first], [first, 1], [1] * len(ids)):
            deltas, stream = stream_of(byte_level, ids, chunks, stops)
            assert ("".join(delta.text for delta in deltas), stream.stopped) == expected


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text("ab<é", max_size=20),
    stops=st.lists(st.text("ab<é", max_size=4), max_size=4),
    chunks=st.lists(st.integers(1, 4), max_size=12),
)
def test_many_stops_agree_with_a_naive_search(
    byte_level: Tokenizer, text: str, stops: list[str], chunks: list[int]
) -> None:
    deltas, stream = stream_of(byte_level, byte_ids(byte_level, text), chunks, stops)
    assert ("".join(delta.text for delta in deltas), stream.stopped) == naive(text, stops)


def test_nothing_that_may_become_a_stop_is_sent(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, ["<|end|>"])
    ids = byte_ids(byte_level, "ab<|en")
    assert [delta.text for delta in stream.feed(Event(tuple(ids)))] == ["ab"]
    more = tuple(byte_ids(byte_level, "x"))
    assert [delta.text for delta in stream.feed(Event(more))] == ["<|enx"]
    assert stream.finish() == []


def test_tokens_after_a_stop_are_ignored(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, ["x"])
    assert [delta.text for delta in stream.feed(Event(tuple(byte_ids(byte_level, "abxcd"))))] == [
        "ab"
    ]
    assert stream.stopped == "x"
    assert stream.feed(Event(tuple(byte_ids(byte_level, "ef")))) == []
    assert stream.finish() == []


def test_every_token_with_a_log_probability_goes_out_once_with_its_text(
    byte_level: Tokenizer,
) -> None:
    text = "hello 😀 wörld <|e and on"
    ids = byte_ids(byte_level, text)
    for size in (1, 2, 3, 50):
        deltas, _ = stream_of(byte_level, ids, [size] * len(ids), ["<|end|>", "zz"], logprobs=True)
        sent = b""
        shown = ""
        for delta in deltas:
            shown += delta.text
            sent += b"".join(token.data for token in delta.tokens)
            assert len(sent) <= len(shown.encode())
            assert len(shown.encode()) - len(sent) < 8
        assert sent == text.encode()
        tokens = [token for delta in deltas for token in delta.tokens]
        assert [token.logprob for token in tokens] == [-float(i) for i in ids]
        assert tokens[0].top == (("h", -0.5, b"h"),)


def test_tokens_of_a_stop_string_are_not_reported(byte_level: Tokenizer) -> None:
    ids = byte_ids(byte_level, "ab STOP cd")
    deltas, _ = stream_of(byte_level, ids, [1] * len(ids), ["STOP"], logprobs=True)
    assert b"".join(t.data for delta in deltas for t in delta.tokens) == b"ab "


def test_a_broken_code_point_comes_out_at_the_end(byte_level: Tokenizer) -> None:
    ids = byte_ids(byte_level, "a😀")[:-1]
    deltas, _ = stream_of(byte_level, ids, [1] * len(ids), [], logprobs=True)
    assert "".join(delta.text for delta in deltas) == "a\ufffd"
    assert sum(len(delta.tokens) for delta in deltas) == len(ids)


def test_special_tokens_make_no_text(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_start|>hi</s>", special=True)
    deltas, _ = stream_of(byte_level, ids, [1] * len(ids), [])
    assert "".join(delta.text for delta in deltas) == "hi"


def test_cost_does_not_grow_with_the_number_of_stops() -> None:
    matcher = StopMatcher([f"{'a' * 50}{idx}" for idx in range(200)])
    steps = 0
    for char in "a" * 20_000 + "199":
        steps += bool(matcher.step(char))
    assert steps >= 1
    assert matcher.held >= 0

"""The name grammar: what is a name, how it is shown, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftman.errors import UsageError
from ftman.names import is_valid_name, parse_name, printable


@pytest.mark.parametrize(
    ("text", "parts", "short"),
    [
        ("x", ("registry.ollama.ai", "library", "x", "latest"), "x:latest"),
        ("X:LATEST", ("registry.ollama.ai", "library", "X", "LATEST"), "X:LATEST"),
        ("user/model:v1", ("registry.ollama.ai", "user", "model", "v1"), "user/model:v1"),
        ("library/x", ("registry.ollama.ai", "library", "x", "latest"), "x:latest"),
        ("registry.ollama.ai/library/x:a", ("registry.ollama.ai", "library", "x", "a"), "x:a"),
        ("hf.co/a/b:Q4_K_M", ("hf.co", "a", "b", "Q4_K_M"), "hf.co/a/b:Q4_K_M"),
        ("localhost:5000/n/m:t", ("localhost:5000", "n", "m", "t"), "localhost:5000/n/m:t"),
        ("localhost:5000/n/m", ("localhost:5000", "n", "m", "latest"), "localhost:5000/n/m:latest"),
        ("http://h/n/m", ("h", "n", "m", "latest"), "h/n/m:latest"),
        ("_a.b-c:_1", ("registry.ollama.ai", "library", "_a.b-c", "_1"), "_a.b-c:_1"),
    ],
)
def test_names_and_their_shortest_form(text: str, parts: tuple[str, ...], short: str) -> None:
    name = parse_name(text)
    assert name.path_parts == parts
    assert name.short == short
    assert parse_name(name.full).path_parts == parts
    assert parse_name(name.short).path_parts == parts


def test_a_written_tag_is_told_from_a_default_one() -> None:
    assert not parse_name("x").tagged
    assert parse_name("x:latest").tagged
    assert parse_name("x").asks_latest
    assert parse_name("x:Latest").asks_latest
    assert parse_name("A/B:C").key == parse_name("a/b:c").key


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":x",
        "x:",
        "/x",
        "x/",
        "a//b",
        "a/b/c/d",
        "a:b:c",
        "x@sha256:" + "0" * 64,
        "-x",
        ".x",
        "x.",
        "x:..",
        "x..y",
        "../x",
        "n.s/x",
        "x y",
        " x",
        "x\n",
        "x\0",
        "é",
        "m\u0430del",
        "x\u202e",
        "~",
        "$(id)",
        "..%2fx",
        "C:\\x",
        "a" * 81,
        "x:" + "t" * 81,
        "n" * 81 + "/x",
        "h" * 351 + "/n/x",
        "a" * 4096,
    ],
)
def test_what_is_no_name_is_refused_with_a_short_printable_reason(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_name(text)
    assert caught.value.code == "invalid_name"
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300
    assert not is_valid_name(text)


@pytest.mark.parametrize("text", ["a" * 80, "x:" + "t" * 80, "n" * 80 + "/x", "h" * 350 + "/n/x"])
def test_parts_may_be_as_long_as_the_limits_say(text: str) -> None:
    assert is_valid_name(text)


@given(st.text(max_size=40))
def test_accepted_names_can_never_leave_a_folder(text: str) -> None:
    if is_valid_name(text):
        for part in parse_name(text).path_parts:
            assert part
            assert part not in (".", "..")
            assert not set(part) & set("/\\\0")
            assert part.isascii()


def test_printable_escapes_and_bounds() -> None:
    assert printable("a\x1b[2J") == "a\\x1b[2J"
    assert printable("x" * 200) == "x" * 80 + "..."

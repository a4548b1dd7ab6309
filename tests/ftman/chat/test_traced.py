"""Traced strings behave as str does and keep the origin of every character they can follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftman.chat import traced
from ftman.chat.traced import Traced, join, plain, runs_of, trace


def origins(text: str) -> list[int]:
    return [origin for length, origin in runs_of(text) for _ in range(length)]


def mixed() -> str:
    return join(["ab ", trace("XY z\n", 2), " c", trace("", 3), trace("d ", 4)])


FOLLOWED: list[Callable[[str], str]] = [
    lambda s: s.strip(), lambda s: s.lstrip("ab"), lambda s: s.rstrip(), lambda s: s[2:5],
    lambda s: s[-3:], lambda s: s[::-1], lambda s: s[::2], lambda s: s[1], lambda s: s[-1],
    lambda s: s + "t", lambda s: "t" + s, lambda s: s * 2, lambda s: s.upper(),
    lambda s: s.replace("XY", "new"), lambda s: s.replace(" ", ""), lambda s: s.removeprefix("ab"),
    lambda s: s.removesuffix("d "), lambda s: s.split()[1], lambda s: s.split(" ")[2],
    lambda s: s.rsplit(None, 1)[0], lambda s: s.splitlines()[0], lambda s: s.splitlines(True)[0],
    lambda s: s.partition("z")[0], lambda s: s.rpartition(" c")[2], lambda s: "".join(s),
    lambda s: s.center(30), lambda s: s.zfill(30), lambda s: s.title(), lambda s: s.casefold(),
]  # fmt: skip


@pytest.mark.parametrize("change", FOLLOWED)
def test_results_equal_those_of_a_plain_string(change: Callable[[str], str]) -> None:
    result = change(mixed())
    assert result == change(plain(mixed()))
    assert sum(length for length, _ in runs_of(result)) == len(result)


def test_pieces_keep_their_origin() -> None:
    text = mixed()
    assert origins(text) == [0] * 3 + [2] * 5 + [0] * 2 + [4] * 2
    assert origins(text[2:5]) == [0, 2, 2]
    assert origins(text[::-1]) == origins(text)[::-1]
    assert origins(text.strip()) == origins(text)[:-1]
    assert [origins(part) for part in text.split()] == [[0, 0], [2, 2], [2], [0, 4]]
    assert origins(text.replace("XY", "new")) == [0] * 6 + [2] * 3 + [0] * 2 + [4] * 2
    assert origins(trace(",", 7).join(["a", trace("b", 2)])) == [0, 7, 2]
    assert [origins(char)[0] for char in text] == origins(text)


def test_what_cannot_be_followed_is_a_value_as_a_whole() -> None:
    assert set(origins(mixed().center(40))) == {2}
    assert set(origins(trace("ß", 5).upper())) == {5}
    assert set(origins(traced.percent("%5s|%s", (trace("x", 3), "y")))) == {3}


def test_simple_percent_formats_are_followed() -> None:
    assert origins(traced.percent("a%sb%s", (trace("x", 3), "y"))) == [0, 3, 0, 0]


def test_equality_hashing_and_search_are_those_of_str() -> None:
    text = trace("</think> a", 2)
    assert text == "</think> a"
    assert {"</think> a": 1}[text] == 1
    assert "</think>" in text
    assert text.startswith("</")
    assert isinstance(str(text), Traced)
    assert type(plain(text)) is str


@settings(max_examples=200, deadline=None)
@given(
    st.text("ab \n", max_size=12),
    st.text("ab \n", max_size=12),
    st.sampled_from(["a", " ", "ab", None]),
)
def test_splitting_and_joining_agree_with_str(left: str, right: str, sep: str | None) -> None:
    text = join([left, trace(right, 2)])
    for name in ("split", "rsplit"):
        parts = getattr(text, name)(sep, 2)
        assert parts == getattr(left + right, name)(sep, 2)
        if sep is not None and right:
            mark = trace(sep, 9)
            again = mark.join(parts)
            assert again == left + right
    assert text.splitlines() == (left + right).splitlines()

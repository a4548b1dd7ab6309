"""Word wrap, checked on what a terminal would show."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftman.cli.wrap import WordWrap, cell_columns


def screen(written: str) -> list[str]:
    """Play cursor-left and erase on a list of lines."""
    lines = [""]
    for part in re.findall(r"\x1b\[\d+D|\x1b\[K|\n|.", written, re.DOTALL):
        if part == "\n":
            lines.append("")
        elif part.endswith("D") and part.startswith("\x1b"):
            columns = int(part[2:-1])
            while columns > 0:
                columns -= cell_columns(lines[-1][-1])
                lines[-1] = lines[-1][:-1]
        elif part != "\x1b[K":
            lines[-1] += part
    return lines


def test_a_word_that_crosses_the_edge_moves_down_whole() -> None:
    wrap = WordWrap(12)
    written = wrap.feed("the quick br") + wrap.feed("own fox")
    assert [line.rstrip() for line in screen(written)] == ["the quick", "brown fox"]


def test_a_word_longer_than_the_line_is_cut() -> None:
    assert screen(WordWrap(10).feed("a" * 20)) == ["a" * 9, "a" * 9, "aa"]


def test_wide_characters_take_two_columns() -> None:
    lines = screen(WordWrap(10).feed("漢字 漢字漢字"))
    assert [line.rstrip() for line in lines] == ["漢字", "漢字漢字"]


def test_zero_width_leaves_text_alone() -> None:
    assert WordWrap(0).feed("x" * 500) == "x" * 500


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab \n漢", max_size=80), st.integers(6, 20), st.integers(1, 5))
def test_no_line_is_too_wide_and_no_letter_is_lost(text: str, width: int, step: int) -> None:
    wrap = WordWrap(width)
    written = "".join(wrap.feed(text[i : i + step]) for i in range(0, len(text), step))
    lines = screen(written)
    assert all(sum(map(cell_columns, line)) < width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["one\n\ntwo", "a b c"])
def test_short_text_is_untouched(text: str) -> None:
    assert WordWrap(40).feed(text) == text

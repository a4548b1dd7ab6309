"""Word wrap for text that arrives in pieces, on terminals only."""

from __future__ import annotations

import unicodedata


class WordWrap:
    """Breaks lines between words. A word that crosses the edge is erased and begun again below.

    width: columns of the terminal; 0 leaves the text as it is.
    """

    def __init__(self, width: int):
        self._width = width
        self._column = 0
        self._word = ""
        self._word_columns = 0

    def feed(self, text: str) -> str:
        """The text to write now, with breaks and cursor movements put in."""
        if not self._width:
            return text
        return "".join(self._place(character) for character in text)

    def _place(self, character: str) -> str:
        if character == "\n":
            self._column = 0
            self._begin_word("")
            return character
        size = cell_columns(character)
        if character.isspace():
            self._begin_word("")
            if self._column + size >= self._width:
                self._column = 0
                return "\n"
            self._column += size
            return character
        if self._column + size < self._width:
            self._word += character
            self._word_columns += size
            self._column += size
            return character
        return self._break_before(character, size)

    def _break_before(self, character: str, size: int) -> str:
        word, columns = self._word, self._word_columns
        if not word or columns + size >= self._width:
            self._begin_word(character)
            self._word_columns = self._column = size
            return "\n" + character
        self._word = word + character
        self._word_columns = self._column = columns + size
        return f"\x1b[{columns}D\x1b[K\n{word}{character}"

    def _begin_word(self, text: str) -> None:
        self._word, self._word_columns = text, 0


def cell_columns(character: str) -> int:
    """Terminal columns one character takes: 0, 1 or 2."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

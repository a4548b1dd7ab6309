"""JSON checked while it arrives, and given out so that it can be closed at any moment.

Models write almost-JSON: raw line breaks in strings, unknown escapes, Python's True, a comma too
many. These are put right; anything else that is not JSON is refused. Not here: what keys mean.
"""

from __future__ import annotations

import re

from ftman.chat.formats.reader import BrokenCallError

DEPTH_LIMIT = 100
_TOKEN_LIMIT = 1000
_SPACE = " \t\r\n"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_LITERALS = ("true", "false", "null")
_TOKEN_CHARS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SIMPLE_ESCAPES = frozenset('"\\/bfnrt')
_REPLACEMENT = "\\ufffd"


class JsonStream:
    """One JSON value. `feed` gives out text whose end can be made JSON by adding `closing`."""

    def __init__(self) -> None:
        self.done = False
        self.used = 0
        self._closers: list[str] = []
        self._state = "value"
        self._pending = ""
        self._token = ""
        self._escape = ""
        self._high = ""
        self._out: list[str] = []

    def feed(self, text: str) -> str:
        """Take text; returns what is settled. `used` is how many of its characters are part of the
        value, also after an error.

        Raises: BrokenCallError.
        """
        self.used = 0
        while self.used < len(text) and not self.done:
            if self._state in ("string", "key"):
                self.used = self._in_string(text, self.used)
            elif self._state == "token" and text[self.used] not in _TOKEN_CHARS:
                self._end_token()
            else:
                self._structure(text[self.used])
                self.used += 1
        return self.settled()

    def settled(self) -> str:
        """What is settled and was not given out yet; also after an error."""
        out, self._out = "".join(self._out), []
        return out

    def end(self) -> str:
        """The text is over: a number that is all of it is complete, one inside may go on."""
        if self._state == "token" and not self._closers:
            self._end_token()
        return self.settled()

    @property
    def closing(self) -> str:
        """What makes everything given out so far one JSON value."""
        quote = '"' if self._state == "string" else ""
        return quote + "".join(reversed(self._closers))

    def _structure(self, char: str) -> None:
        if self._state == "token":
            self._token += char
            if len(self._token) > _TOKEN_LIMIT:
                raise BrokenCallError("a number in it is too long")
        elif char in _SPACE:
            self._pending += char
        elif self._state == "colon":
            self._need(char == ":", char)
            self._pending += char
            self._state = "value"
        elif self._state in ("first_key", "next_key"):
            self._key_or_end(char)
        elif self._state == "after":
            self._comma_or_end(char)
        elif char == "]" and self._state in ("first_item", "next_item"):
            self._close(char)
        else:
            self._value(char)

    def _value(self, char: str) -> None:
        if char in "{[":
            if len(self._closers) >= DEPTH_LIMIT:
                raise BrokenCallError(f"it nests deeper than {DEPTH_LIMIT} levels")
            self._give(char)
            self._closers.append("}" if char == "{" else "]")
            self._state = "first_key" if char == "{" else "first_item"
        elif char == '"':
            self._give(char)
            self._state = "string"
        else:
            self._need(char in _TOKEN_CHARS, char)
            self._token = char
            self._state = "token"

    def _key_or_end(self, char: str) -> None:
        if char == "}":
            self._close(char)
            return
        self._need(char == '"', char)
        self._pending += char
        self._state = "key"

    def _comma_or_end(self, char: str) -> None:
        if char == ",":
            self._pending += char
            self._state = "next_key" if self._closers[-1] == "}" else "next_item"
        else:
            self._need(char == self._closers[-1], char)
            self._close(char)

    def _close(self, char: str) -> None:
        if self._state in ("next_key", "next_item"):  # a comma too many
            self._pending = ""
        self._closers.pop()
        self._give(char)
        self._end_value()

    def _end_token(self) -> None:
        token = _WORDS.get(self._token, self._token)
        if token not in _LITERALS and not _NUMBER.fullmatch(token):
            raise BrokenCallError(f"{token[:20]!r} is not JSON")
        self._token = ""
        self._give(token)
        self._end_value()

    def _end_value(self) -> None:
        self._state = "after"
        self.done = not self._closers

    def _give(self, text: str) -> None:
        self._out.append(self._pending + text)
        self._pending = ""

    def _in_string(self, text: str, at: int) -> int:
        if self._escape:
            return self._in_escape(text, at)
        char = text[at]
        if char == "\\":
            self._escape = char
            return at + 1
        self._lone_surrogate()
        plain = _PLAIN.match(text, at)
        if plain is not None:
            self._put(plain.group())
            return plain.end()
        if char != '"':
            self._put(f"\\u{ord(char):04x}" if char not in "\n\r\t" else repr(char)[1:-1])
        elif self._state == "key":
            self._pending += char
            self._state = "colon"
        else:
            self._out.append(char)
            self._end_value()
        return at + 1

    def _in_escape(self, text: str, at: int) -> int:
        char = text[at]
        if len(self._escape) == 1 and char != "u":
            self._lone_surrogate()
            self._escape = ""
            if char not in _SIMPLE_ESCAPES:  # the backslash was meant as one
                self._put("\\\\")
                return at
            self._put("\\" + char)
            return at + 1
        if len(self._escape) > 1 and char not in "0123456789abcdefABCDEF":
            raise BrokenCallError(f"{self._escape + char!r} is no escape")
        self._escape += char
        if len(self._escape) == 6:
            self._end_unicode()
        return at + 1

    def _end_unicode(self) -> None:
        escape, self._escape = self._escape, ""
        code = int(escape[2:], 16)
        if self._high and 0xDC00 <= code < 0xE000:
            escape, self._high = self._high + escape, ""
            self._put(escape)
            return
        self._lone_surrogate()
        if 0xD800 <= code < 0xDC00:
            self._high = escape
        else:
            self._put(_REPLACEMENT if 0xDC00 <= code < 0xE000 else escape)

    def _lone_surrogate(self) -> None:
        if self._high:
            self._high = ""
            self._put(_REPLACEMENT)

    def _put(self, text: str) -> None:
        if self._state == "key":
            self._pending += text
        else:
            self._out.append(text)

    @staticmethod
    def _need(good: bool, char: str) -> None:
        if not good:
            raise BrokenCallError(f"{char!r} is not JSON here")

"""Go template text to tokens: literal text, and the words between `{{` and `}}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ftman.errors import UsageError

_SPACE = " \t\r\n"
_BASED = r"0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+"
_NUMBER = rf"[+-]?(?:{_BASED}|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_WORDS = re.compile(
    rf"""(?P<field>\.[^\W\d]\w*)|(?P<number>{_NUMBER}(?!\w))|(?P<variable>\$\w*)"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<raw>`[^`]*`)"""
    r"""|(?P<char>'(?:\\.[^']*|[^'\\\n])')|(?P<declare>:=)|(?P<mark>[|(),=.])"""
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
            "\\": "\\", "'": "'", '"': '"'}  # fmt: skip
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))")


@dataclass(frozen=True)
class Token:
    """kind: text, begin, end, field, number, variable, word, string, or the mark itself.

    spaced: white space stands before it.
    """

    kind: str
    value: Any
    line: int
    spaced: bool = False


def template_error(message: str, line: int) -> UsageError:
    """The one error of Go templates: what, and in which line."""
    return UsageError(
        f"template error: line {line}: {message}",
        hint="Correct the TEMPLATE of this model or request.",
        code="template_error",
    )


def lex(source: str) -> Iterator[Token]:
    """Split a template. Raises: UsageError on text that cannot be a token."""
    at = 0
    trim_next = False
    while True:
        start = source.find("{{", at)
        text = source[at:] if start < 0 else source[at:start]
        text = text.lstrip(_SPACE) if trim_next else text
        line = source.count("\n", 0, max(start, 0)) + 1
        trims = start >= 0 and source[start + 2 : start + 3] == "-" and _is_space(source, start + 3)
        text = text.rstrip(_SPACE) if trims else text
        if text:
            yield Token("text", text, line)
        if start < 0:
            return
        at = start + (3 if trims else 2)
        comment = at
        while _is_space(source, comment):
            comment += 1
        if source.startswith("/*", comment):
            at, trim_next = _skip_comment(source, comment, line)
            continue
        yield Token("begin", "{{", line)
        action = _Action(source, at, line)
        yield from action.tokens()
        at, trim_next = action.at, action.trims


def _is_space(source: str, at: int) -> bool:
    return at < len(source) and source[at] in _SPACE


def _closing(source: str, at: int) -> tuple[int, bool] | None:
    """Where the action that closes at `at` ends, and whether it trims the text behind."""
    if source.startswith("}}", at):
        return at + 2, False
    if _is_space(source, at) and source.startswith("-}}", at + 1):
        return at + 4, True
    return None


def _skip_comment(source: str, at: int, line: int) -> tuple[int, bool]:
    stop = source.find("*/", at)
    if stop < 0:
        raise template_error("unclosed comment", line)
    closing = _closing(source, stop + 2)
    if closing is None:
        raise template_error("comment ends before closing delimiter", line)
    return closing


class _Action:
    """The tokens of one action; afterwards `at` and `trims` say how it ended."""

    def __init__(self, source: str, at: int, line: int):
        self._source = source
        self._line = line
        self.at = at
        self.trims = False

    def tokens(self) -> Iterator[Token]:
        source = self._source
        spaced = False
        while True:
            if self.at >= len(source):
                raise template_error("unclosed action", self._line)
            closing = _closing(source, self.at)
            if closing is not None:
                yield Token("end", "}}", self._line, spaced)
                self.at, self.trims = closing
                return
            if source[self.at] in _SPACE:
                self._line += source[self.at] == "\n"
                self.at += 1
                spaced = True
                continue
            yield self._word(spaced)
            spaced = False

    def _word(self, spaced: bool) -> Token:
        found = _WORDS.match(self._source, self.at)
        if found is None:
            char = self._source[self.at]
            what = "unterminated quoted string" if char in "\"`'" else "unexpected character"
            raise template_error(f"{what} {char!r} in command", self._line)
        self.at = found.end()
        kind, text = str(found.lastgroup), found.group()
        line = self._line
        self._line += text.count("\n")
        if kind == "mark":
            return Token(text, text, line, spaced)
        if kind == "declare":
            return Token(":=", text, line, spaced)
        if kind in ("string", "raw", "number", "char"):
            kind, value = _constant(kind, text, line)
            return Token(kind, value, line, spaced)
        return Token(kind, text[1:] if kind == "field" else text, line, spaced)


def _constant(kind: str, text: str, line: int) -> tuple[str, Any]:
    if kind == "raw":
        return "string", text[1:-1].replace("\r", "")
    if kind == "string":
        return "string", _unquote(text[1:-1], line)
    if kind == "char":
        char = _unquote(text[1:-1], line)
        if len(char) != 1:
            raise template_error(f"malformed character constant: {text}", line)
        return "number", ord(char)
    return "number", _number(text, line)


def _number(text: str, line: int) -> int | float:
    plain = text.replace("_", "")
    digits = plain.lstrip("+-")
    try:
        if digits[:2].lower() in ("0x", "0b", "0o"):
            return int(plain, 0)
        if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
            return int(plain, 8)
        return int(plain) if digits.isdigit() else float(plain)
    except ValueError:
        raise template_error(f"bad number syntax: {text!r}", line) from None


def _unquote(text: str, line: int) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> bytes:
        byte, short, long, octal, char = match.groups()
        if byte or octal:
            return bytes([int(byte, 16) if byte else int(octal, 8) & 255])
        if short or long:
            return chr(int(short or long, 16)).encode("utf-8", "replace")
        if char not in _ESCAPES:
            raise template_error(f"unknown escape \\{char} in a string", line)
        return _ESCAPES[char].encode()

    out, at = b"", 0
    for match in _ESCAPE.finditer(text):
        out += text[at : match.start()].encode() + one(match)
        at = match.end()
    return (out + text[at:].encode()).decode("utf-8", "replace")

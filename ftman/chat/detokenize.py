"""Token texts back to words, one token at a time, equal to decoding the whole list at once.

A tokenizer names its decoder as a chain of steps; each step here is a small machine with `push` and
`end`, so that a stream costs the same per token however long it gets. Not here: ids (tokenizer.py)
and stop strings (parse.py).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ftman.errors import UnsupportedError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CLEANUPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class Step(Protocol):
    """One decoder step: texts in, texts out, possibly later."""

    def push(self, text: str) -> str | None:
        """Take the next text; returns what is settled now, None when nothing is."""

    def end(self) -> str | None:
        """Give out what was held back."""


def byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies, to the byte.

    Source: the GPT-2 encoder: printable Latin-1 stands for itself, the rest from U+0100 up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + idx): byte for idx, byte in enumerate(others)})
    return alphabet


_ALPHABET = byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; a token outside the alphabet stands for its own UTF-8."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


def fallback_byte(token: str) -> bytes | None:
    """The byte that a `<0x41>` token stands for, None for other tokens."""
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found.group(1), 16)]) if found else None


class _ByteLevel:
    """Bytes to text; an unfinished code point waits, a broken one becomes U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, text: str) -> str | None:
        return self._decoder.decode(byte_level_bytes(text))

    def end(self) -> str | None:
        return self._decoder.decode(b"", True)


class _ByteFallback:
    """Runs of byte tokens: text when the whole run is UTF-8, else one U+FFFD for each byte.

    The run is held until another token ends it, since one bad byte spoils all of it.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, text: str) -> str | None:
        byte = fallback_byte(text)
        if byte is not None:
            self._run += byte
            return None
        return (self.end() or "") + text

    def end(self) -> str | None:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)


class _Each:
    """A step that maps each text by itself; `change` is told whether it is the first."""

    def __init__(self, change: Callable[[str, bool], str]):
        self._change = change
        self._first = True

    def push(self, text: str) -> str | None:
        first, self._first = self._first, False
        return self._change(text, first)

    def end(self) -> str | None:
        return None


class _StripStart:
    """Drops up to `count` leading characters `char` of the whole text."""

    def __init__(self, char: str, count: int):
        self._char = char
        self._left = count

    def push(self, text: str) -> str | None:
        while self._left and text:
            if text[0] != self._char:
                self._left = 0
                break
            text = text[1:]
            self._left -= 1
        return text

    def end(self) -> str | None:
        return None


def _replace(spec: dict[str, Any], fused: bool) -> Step:
    pattern = spec["pattern"].get("String")
    if pattern is None or (fused and len(pattern) != 1):
        raise _unbuilt(f"Replace of {spec['pattern']}")
    content = spec["content"]
    return _Each(lambda text, first: text.replace(pattern, content))


def _metaspace(spec: dict[str, Any], fused: bool) -> Step:
    mark = spec.get("replacement", "\u2581")
    drops = spec.get("prepend_scheme", "always") != "never"
    return _Each(lambda text, first: text.replace(mark, "" if first and drops else " "))


def _wordpiece(spec: dict[str, Any], fused: bool) -> Step:
    prefix, cleanup = spec.get("prefix", "##"), spec.get("cleanup", True)

    def change(text: str, first: bool) -> str:
        if not first:
            text = text[len(prefix) :] if text.startswith(prefix) else " " + text
        for dirty, clean in _CLEANUPS if cleanup else ():
            text = text.replace(dirty, clean)
        return text

    return _Each(change)


def _strip(spec: dict[str, Any], fused: bool) -> Step:
    if spec.get("stop", 0):
        raise _unbuilt("Strip at the end")
    char, count = spec["content"], spec.get("start", 0)
    if fused:
        return _StripStart(char, count)
    return _Each(lambda text, first: _StripStart(char, count).push(text) or "")


_STEPS: dict[str, Callable[[dict[str, Any], bool], Step]] = {
    "ByteLevel": lambda spec, fused: _ByteLevel(),
    "ByteFallback": lambda spec, fused: _ByteFallback(),
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _wordpiece,
    "Strip": _strip,
}


def _unbuilt(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"tokenizer decoder {what} is not built; built: {', '.join(sorted(_STEPS))}, Fuse, Sequence"
    )


class Detokenizer:
    """The decoder of one tokenizer; `start` begins a text. Raises: UnsupportedError."""

    def __init__(self, state: bytes | None):
        spec = json.loads(state) if state else None
        if spec is None:
            self._specs: list[dict[str, Any]] = []
        else:
            self._specs = spec["decoders"] if spec["type"] == "Sequence" else [spec]
        self._joins_by_space = spec is None
        self.byte_level = any(item["type"] == "ByteLevel" for item in self._specs)
        self.byte_fallback = any(item["type"] == "ByteFallback" for item in self._specs)
        self.start()

    def start(self) -> list[Step]:
        """Fresh steps for one text."""
        if self._joins_by_space:
            return [_Each(lambda text, first: text if first else " " + text)]
        steps: list[Step] = []
        fused = False
        for spec in self._specs:
            kind = spec["type"]
            if kind in ("Fuse", "ByteLevel"):
                fused = True
            if kind == "Fuse":
                continue
            if kind not in _STEPS:
                raise _unbuilt(kind)
            steps.append(_STEPS[kind](spec, fused))
        return steps

    def token_bytes(self, token: str) -> bytes:
        """Bytes that one token stands for inside a text."""
        if self.byte_level:
            return byte_level_bytes(token)
        byte = fallback_byte(token) if self.byte_fallback else None
        if byte is not None:
            return byte
        for spec in self._specs:
            if spec["type"] == "Replace" and "String" in spec["pattern"]:
                token = token.replace(spec["pattern"]["String"], spec["content"])
            elif spec["type"] == "Metaspace":
                token = token.replace(spec.get("replacement", "\u2581"), " ")
        return token.encode("utf-8", "surrogatepass")


class StreamDecoder:
    """Incremental decoding of ids; the pieces joined equal decoding all ids at once.

    Cost per id does not grow with the text. Build with `Tokenizer.stream`.
    """

    def __init__(self, steps: Sequence[Step], text_of: Callable[[int], str | None]):
        self._steps = steps
        self._text_of = text_of

    def feed(self, ids: Sequence[int]) -> str:
        """Take ids; returns the text that is settled, never half a code point."""
        return "".join(self._push(text, 0) for text in map(self._text_of, ids) if text is not None)

    def flush(self) -> str:
        """End the text: broken or unfinished code points come out as U+FFFD."""
        out = ""
        for idx, step in enumerate(self._steps):
            rest = step.end()
            if rest:
                out += self._push(rest, idx + 1)
        return out

    def _push(self, text: str, start: int) -> str:
        for step in self._steps[start:]:
            settled = step.push(text)
            if settled is None:
                return ""
            text = settled
        return text

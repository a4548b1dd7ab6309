"""What of a client's request may be kept as a fixture: its shape and short words, nobody's prose.

A long text becomes "<4312 characters>"; `expand` makes a filler of that length of it again, so that
a replayed request is as large as the one that was sent. Folders of this machine, keys and random
ids are replaced by fixed ones. Not here: how requests are caught (recorder.py).
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LONGEST_TEXT = 120
LONGEST_DESCRIPTION = 24
PROSE = ("description", "title", "instructions")
SECRET_HEADERS = ("authorization", "x-api-key", "api-key")
KEPT_HEADERS = (
    "accept",
    "anthropic-beta",
    "anthropic-version",
    "authorization",
    "content-type",
    "openai-beta",
    "originator",
    "user-agent",
    "x-api-key",
    "x-app",
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PLACE = re.compile(r"(?<![\w/])/(?!home/user\b)(?:tmp|root|home|var|mnt|srv|opt)(?:/[\w.@+-]+)*")
_FILE = re.compile(r"file://[^\s\"'<>]+")
_LENGTH = re.compile(r"^<(\d+) characters>$")
_FILLER = "the quick brown fox jumps over the lazy dog and "


class Redactor:
    """Keeps one meaning per value over a whole recording: the second id seen is always id 2."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def value(self, value: Any, key: str = "") -> Any:
        """The same JSON value without prose, places and ids."""
        if isinstance(value, dict):
            return {self._text(k): self.value(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if isinstance(value, str):
            limit = LONGEST_DESCRIPTION if key in PROSE else LONGEST_TEXT
            return self._text(value) if len(value) <= limit else self._shorter(value)
        return value

    def headers(self, headers: dict[str, str]) -> dict[str, str]:
        """The headers that a server may look at, in lower case, keys replaced."""
        kept = {k.lower(): v for k, v in headers.items() if k.lower() in KEPT_HEADERS}
        for name in SECRET_HEADERS:
            if name in kept:
                kept[name] = "Bearer redacted" if kept[name].startswith("Bearer ") else "redacted"
        return {name: self._text(text) for name, text in sorted(kept.items())}

    def _shorter(self, text: str) -> str:
        try:  # JSON inside of a string stays JSON: clients send arguments and ids that way
            inner = json.loads(text)
        except ValueError:
            inner = None
        if isinstance(inner, dict | list):
            return json.dumps(self.value(inner))
        return f"<{len(text)} characters>"

    def _text(self, text: str) -> str:
        for place in (str(ROOT), str(Path.home()), tempfile.gettempdir()):
            if len(place) > 1:
                text = text.replace(place, "/home/user")
        text = _FILE.sub("file:///home/user/model", text)
        return _UUID.sub(self._id, _PLACE.sub("/home/user/folder", text))

    def _id(self, found: re.Match[str]) -> str:
        number = len(self._ids) + 1
        return self._ids.setdefault(found[0].lower(), f"00000000-0000-4000-8000-{number:012}")


def expand(value: Any) -> Any:
    """The value with fillers where long texts were."""
    if isinstance(value, dict):
        return {key: expand(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item) for item in value]
    if isinstance(value, str) and (found := _LENGTH.match(value)):
        return (_FILLER * (int(found[1]) // len(_FILLER) + 1))[: int(found[1])]
    return value

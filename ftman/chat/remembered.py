"""The ids of past replies, found again by what was said when a client sends the turn back.

A reply is known by its answer and its calls, white space around the answer, ids of calls, and the
order of argument names aside; reasoning is compared where the prompt shows it. Bounded, the
longest unused replies go first. Not here: where a reply stands in a prompt (own_turns.py).
"""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.types import ChatEvent, Message, TextDelta, ThinkingDelta, ToolCall

MAX_TOKENS = 4 << 20
"""Ids kept over all models and keys; four bytes each."""

_MAX_ALIKE = 8
_MAX_FITS = 4


@dataclass(frozen=True)
class Said:
    """What a turn says. calls: (name, arguments as JSON with sorted keys) in order."""

    thinking: str = ""
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def by(message: Message) -> Said:
        """What a message of a conversation says; its calls are in canonical form."""
        functions = (call.get("function") or {} for call in message.tool_calls)
        calls = tuple(_call(str(f.get("name", "")), f.get("arguments")) for f in functions)
        return Said(message.thinking.strip(), message.content.strip(), calls)

    @staticmethod
    def in_events(events: Iterable[ChatEvent]) -> Said:
        """What the events of a whole reply say."""
        thinking: list[str] = []
        text: list[str] = []
        calls: list[tuple[str, str]] = []
        for event in events:
            if isinstance(event, ThinkingDelta):
                thinking.append(event.text)
            elif isinstance(event, TextDelta):
                text.append(event.text)
            elif isinstance(event, ToolCall):
                calls.append(_call(event.name, event.arguments))
        return Said("".join(thinking).strip(), "".join(text).strip(), tuple(calls))

    @property
    def key(self) -> bytes:
        """A digest of the answer and the calls."""
        return _digest(json.dumps([self.text, self.calls]))

    @property
    def thinking_key(self) -> bytes:
        """A digest of the reasoning; empty when there is none."""
        return _digest(self.thinking) if self.thinking else b""


@dataclass(frozen=True)
class Fit:
    """Which ids of a reply stand for a text: those from `start`, after the opening's if `lead`."""

    lead: bool
    start: int


@dataclass
class Remembered:
    """One reply.

    ids: as generated, without the stop token. head: the template's text before the reply, up to
    what opened its reasoning; lead: the rest of that text, lead_ids its tokens. fits: texts that
    were compared with it before, by their hash.
    """

    ids: Sequence[int]
    key: bytes
    thinking_key: bytes
    head: str
    lead: str
    lead_ids: tuple[int, ...]
    fits: OrderedDict[int, Fit | None] = field(default_factory=OrderedDict)

    def note_fit(self, text_hash: int, fit: Fit | None) -> None:
        """Keep the outcome of a comparison; a turn is sent back in few forms."""
        self.fits[text_hash] = fit
        while len(self.fits) > _MAX_FITS:
            self.fits.popitem(last=False)

    def ids_of(self, fit: Fit) -> list[int]:
        """The ids that a fit names."""
        return [*(self.lead_ids if fit.lead else ()), *self.ids[fit.start :]]


class ReplyMemory:
    """Replies by scope (a model and an API key) and by what they say. Thread-safe."""

    def __init__(self, max_tokens: int = MAX_TOKENS):
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._replies: OrderedDict[tuple[str, bytes], list[Remembered]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_tokens(self) -> int:
        """Ids that are held."""
        return self._num_tokens

    def keep(self, scope: str, reply: Remembered) -> None:
        """Remember a reply; the same ids said again are held once."""
        reply.ids = array("I", reply.ids)
        with self._lock:
            alike = self._replies.pop((scope, reply.key), [])
            old = [other for other in alike if _same(other, reply)]
            kept = [reply, *(other for other in alike if other not in old)]
            dropped = [*old, *kept[_MAX_ALIKE:]]
            self._replies[scope, reply.key] = kept[:_MAX_ALIKE]
            self._num_tokens += len(reply.ids) - sum(len(item.ids) for item in dropped)
            while self._num_tokens > self._max_tokens and self._replies:
                _, gone = self._replies.popitem(last=False)
                self._num_tokens -= sum(len(item.ids) for item in gone)

    def find(self, scope: str, key: bytes) -> list[Remembered]:
        """Replies that say this, the newest first."""
        with self._lock:
            found = self._replies.get((scope, key))
            if found is None:
                return []
            self._replies.move_to_end((scope, key))
            return list(found)


def _same(one: Remembered, other: Remembered) -> bool:
    return one.ids == other.ids and (one.head, one.lead) == (other.head, other.lead)


def _call(name: str, arguments: Any) -> tuple[str, str]:
    given = arguments if isinstance(arguments, Mapping) else {}
    return name, json.dumps(given, sort_keys=True, default=str)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

"""A model's own replies in a prompt: where the template wrote one, its generated ids stand instead.

Only where that changes nothing but how the turn is written: the text that the template made of the
turn, read as a reply, has to say what the reply said. What the template left out (reasoning of old
turns) stays left out. Texts around the turns are the template's to the letter. Not here: what is
remembered (remembered.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ftman.chat import traced
from ftman.chat.formats.base import ChatFormat
from ftman.chat.formats.output import OutputParser
from ftman.chat.remembered import Fit, Remembered, ReplyMemory, Said
from ftman.chat.tokenizer import Offsets, Span, Tokenizer
from ftman.chat.traced import TEMPLATE
from ftman.chat.types import Message, Prompt, TextDelta, Tool


@dataclass(frozen=True)
class Placed:
    """Ids that stand for the characters from start to stop of a prompt's text."""

    start: int
    stop: int
    ids: list[int]


@dataclass(frozen=True)
class OwnReplies:
    """The replies that a conversation may hold, and how they are read.

    scope: model and API key. tools: those of the request. ends: texts that end a turn.
    """

    memory: ReplyMemory
    scope: str
    format: ChatFormat
    tools: tuple[Tool, ...]
    ends: tuple[str, ...]

    def keep(self, tokenizer: Tokenizer, prompt: Prompt, ids: Sequence[int], said: Said) -> None:
        """Remember the reply to a prompt; one that goes on with a client's text is not kept."""
        if not ids or not prompt.opening:
            return
        head, lead = self._divided(prompt.opening)
        lead_ids = tuple(tokenizer.encode(lead, special=True)) if lead else ()
        if prompt.token_ids[len(prompt.token_ids) - len(lead_ids) :] != lead_ids:
            head, lead, lead_ids = prompt.opening, "", ()
        reply = Remembered(ids, said.key, said.thinking_key, head, lead, lead_ids)
        self.memory.keep(self.scope, reply)

    def place(
        self, tokenizer: Tokenizer, text: str, messages: Sequence[Message]
    ) -> Iterator[Placed]:
        """Where in a rendered conversation generated ids can stand, in order."""
        turns = _Turns(text)
        for idx, message in enumerate(messages):
            if message.role != "assistant" or idx not in turns.places:
                continue
            for reply in self.memory.find(self.scope, Said.by(message).key):
                found = self._placed(tokenizer, turns, idx, reply)
                if found is not None:
                    yield found
                    break

    def _divided(self, opening: str) -> tuple[str, str]:
        at = opening.rfind(self.format.reasoning.start) if self.format.reasoning else -1
        return (opening[:at], opening[at:]) if at >= 0 else (opening, "")

    def _placed(
        self, tokenizer: Tokenizer, turns: _Turns, idx: int, reply: Remembered
    ) -> Placed | None:
        place = turns.places[idx]
        if not turns.text.startswith(reply.head, place.before):
            return None
        start = place.before + len(reply.head)
        for stop in turns.ends(self.ends, start, place.after):
            fit = self._fit(tokenizer, reply, turns.text[start:stop])
            if fit is not None:
                return Placed(start, stop, reply.ids_of(fit))
        return None

    def _fit(self, tokenizer: Tokenizer, reply: Remembered, text: str) -> Fit | None:
        known = hash(text)
        if known not in reply.fits:
            reply.note_fit(known, self._compared(tokenizer, reply, text))
        return reply.fits.get(known)

    def _compared(self, tokenizer: Tokenizer, reply: Remembered, text: str) -> Fit | None:
        whole = reply.lead + tokenizer.decode(reply.ids, special=True)
        if whole == text:
            return Fit(lead=True, start=0)
        said = self._read(text)
        if said.key != reply.key:
            return None
        shown = self.format.reasoning is None or self.format.reasoning.end not in whole
        if said.thinking_key == reply.thinking_key and (said.thinking or shown):
            return Fit(lead=True, start=0)
        return _tail(tokenizer, reply.ids, text)

    def _read(self, text: str) -> Said:
        parser = OutputParser(self.format, self.tools)
        return Said.in_events([*parser.feed(TextDelta(text)), *parser.finish()])


def encode_with(
    tokenizer: Tokenizer, text: str, spans: Sequence[Span], placed: Sequence[Placed]
) -> tuple[list[int], Offsets]:
    """Encode a text of spans, with ids that are already known in their places.

    Shape: ids, and for each id its (start, end) in characters of the text.
    """
    ids: list[int] = []
    offsets: Offsets = []
    at = 0
    for item in (*placed, Placed(len(text), len(text), [])):
        made, places = tokenizer.encode_spans(_part(spans, at, item.start))
        ids += made
        offsets += [(at + start, at + end) for start, end in places]
        ids += item.ids
        offsets += _spread(tokenizer, item)
        at = item.stop
    return ids, offsets


@dataclass
class _Place:
    """A message's text: other texts end before and begin after it."""

    before: int
    after: int


class _Turns:
    """Where the messages stand in a rendered text."""

    def __init__(self, text: str):
        self.text = traced.plain(text)
        self.places: dict[int, _Place] = {}
        self._starts: list[int] = []
        self._origins: list[int] = []
        at = behind = 0
        current = -1
        for length, origin in traced.runs_of(text):
            self._starts.append(at)
            self._origins.append(origin)
            owner = traced.message_of(origin)
            if origin != TEMPLATE and owner != current:
                if current in self.places:
                    self.places[current].after = min(at, self.places[current].after)
                self.places.setdefault(owner, _Place(behind, len(self.text)))
                current = owner
            at += length
            behind = at if origin != TEMPLATE else behind

    def ends(self, marks: Sequence[str], start: int, stop: int) -> list[int]:
        """Where the template wrote one of the marks, between two places."""
        found = []
        for mark in marks:
            at = self.text.find(mark, start, stop)
            while at >= 0:
                if self._origins[bisect_right(self._starts, at) - 1] == TEMPLATE:
                    found.append(at)
                at = self.text.find(mark, at + 1, stop)
        return sorted(found)


def _tail(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> Fit | None:
    """The last ids, if a text is exactly theirs."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.decode(ids[middle:], special=True)) > len(text):
            low = middle + 1
        else:
            high = middle
    same = low < len(ids) and tokenizer.decode(ids[low:], special=True) == text
    return Fit(lead=False, start=low) if same else None


def _part(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    parts = []
    at = 0
    for span in spans:
        low, high = max(start - at, 0), min(stop - at, len(span.text))
        if low < high:
            parts.append(Span(span.text[low:high], span.special))
        at += len(span.text)
    return parts


def _spread(tokenizer: Tokenizer, item: Placed) -> Offsets:
    """Places of a reply's tokens in the text it stands for: theirs where the texts are equal."""
    lengths = [len(tokenizer.token_text(idx)) for idx in item.ids]
    total = sum(lengths) or 1
    size = item.stop - item.start
    edges = [item.start + done * size // total for done in accumulate(lengths, initial=0)]
    return list(pairwise(edges))

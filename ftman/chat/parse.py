"""Generated ids to text events: code points, stop strings, log probabilities kept at their text.

Not here: reasoning and tool-call formats, which sit on top of this text, and the wire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import TextDelta, TokenText


class Logprob(Protocol):
    """Log probability of one token, as the engine sends it."""

    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> Sequence[tuple[int, float]]: ...


class TokenEvent(Protocol):
    """Generated ids in order; logprobs has one entry for each id, or none at all."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[Logprob]: ...


def token_text(tokenizer: Tokenizer, entry: Logprob) -> TokenText:
    """A token's log probability, and its alternatives', in words."""
    top = tuple(
        (tokenizer.token_text(token_id), logprob, tokenizer.token_bytes(token_id))
        for token_id, logprob in entry.top
    )
    text, data = tokenizer.token_text(entry.token_id), tokenizer.token_bytes(entry.token_id)
    return TokenText(text, entry.logprob, data, top)


class StopMatcher:
    """Finds the first stop string to be complete in a stream, over all stops at once.

    A state is a prefix of some stop string, namely the longest one that the text so far ends with;
    so the held-back tail is the state itself, and each character costs one step (amortised).
    """

    def __init__(self, stops: Sequence[str]):
        self._children: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fallback = [0]
        self._found = [""]
        for stop in filter(None, stops):
            self._add(stop)
        self._link()
        self._state = 0

    def step(self, char: str) -> str:
        """Take one character; returns the longest stop string that ends with it, or "" """
        state = self._state
        while state and char not in self._children[state]:
            state = self._fallback[state]
        self._state = state = self._children[state].get(char, 0)
        return self._found[state]

    @property
    def held(self) -> int:
        """How many last characters may be the start of a stop string."""
        return self._depth[self._state]

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._children[state]:
                self._children[state][char] = len(self._depth)
                self._children.append({})
                self._depth.append(self._depth[state] + 1)
                self._fallback.append(0)
                self._found.append("")
            state = self._children[state][char]
        self._found[state] = stop

    def _link(self) -> None:
        queue = deque(self._children[0].values())
        while queue:
            parent = queue.popleft()
            for char, child in self._children[parent].items():
                state = self._fallback[parent]
                while state and char not in self._children[state]:
                    state = self._fallback[state]
                self._fallback[child] = self._children[state].get(char, 0)
                self._found[child] = self._found[child] or self._found[self._fallback[child]]
                queue.append(child)


@dataclass
class _Pending:
    """A token with log probability, waiting for its text. Units: characters of the whole reply."""

    token: TokenText
    start: int
    end: int


class StopFilter:
    """Lets text through up to the first stop string, which ends it and is not part of it.

    Text that may become a stop string is held back. Tokens go out with the end of their text.
    `stopped` is the stop string that ended the text; what comes after it is ignored.
    """

    def __init__(self, stop: Sequence[str] = ()):
        self._matcher = StopMatcher(stop) if any(stop) else None
        self._held = ""
        self._sent = 0
        self._taken = 0
        self._waiting: deque[_Pending] = deque()
        self.stopped: str | None = None

    def place(self, pending: Iterable[_Pending]) -> None:
        """Expect tokens, in the order of their texts."""
        self._waiting.extend(pending)

    def feed(self, delta: TextDelta) -> list[TextDelta]:
        """Take a delta; its last token ends where it ends."""
        if self.stopped is not None:
            return []
        if self._matcher is None:
            return [delta]
        low, end = self._taken, self._taken + len(delta.text)
        placed = []
        for token in reversed(delta.tokens):
            start = max(low, end - len(token.text))
            placed.append(_Pending(token, start, end))
            end = start
        self.place(reversed(placed))
        return self.push(delta.text)

    def push(self, fresh: str, *, final: bool = False) -> list[TextDelta]:
        """Take text whose tokens were placed; returns what is settled."""
        if self.stopped is not None:
            return []
        self._taken += len(fresh)
        text, cut = self._held + fresh, len(self._held)
        if self._matcher is None:
            return self._emit(text, last=final)
        for char in fresh:
            cut += 1
            found = self._matcher.step(char)
            if found:
                self.stopped = found
                return self._emit(text[: cut - len(found)], last=True)
        keep = 0 if final else self._matcher.held
        settled = text[: len(text) - keep]
        self._held = text[len(settled) :]
        return self._emit(settled, last=final)

    def _emit(self, text: str, *, last: bool) -> list[TextDelta]:
        self._sent += len(text)
        tokens: list[TokenText] = []
        while self._waiting and self._is_due(self._waiting[0], last):
            tokens.append(self._waiting.popleft().token)
        return [TextDelta(text, tuple(tokens))] if text or tokens else []

    def _is_due(self, pending: _Pending, last: bool) -> bool:
        """A token goes out with the end of its text; a cut-off one with what is left of it."""
        if pending.end <= self._sent:
            return True
        return last and (pending.start < self._sent or self.stopped is None)


class TextStream:
    """Turns the token events of one generation into text deltas, up to the first stop string.

    Unfinished code points are held back. visible: special tokens whose text is part of the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), visible: Collection[str] = ()
    ):
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream(visible=visible)
        self._filter = StopFilter(stop)
        self._decoded = 0
        self._unplaced: list[_Pending] = []

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, None while none did."""
        return self._filter.stopped

    def feed(self, event: TokenEvent) -> list[TextDelta]:
        """Take generated tokens; returns the text that is settled, with its tokens."""
        if self.stopped is not None:
            return []
        fresh: list[str] = []
        for idx, token_id in enumerate(event.token_ids):
            text = self._decoder.feed([token_id])
            fresh.append(text)
            if event.logprobs:
                self._unplaced.append(self._pending(event.logprobs[idx]))
            self._place(text)
        return self._filter.push("".join(fresh))

    def finish(self) -> list[TextDelta]:
        """End the text: what was held back comes out, if no stop string ended it before."""
        rest = self._decoder.flush()
        self._place(rest, final=True)
        return self._filter.push(rest, final=True)

    def _pending(self, entry: Logprob) -> _Pending:
        return _Pending(token_text(self._tokenizer, entry), self._decoded, self._decoded)

    def _place(self, text: str, *, final: bool = False) -> None:
        """Give tokens their place once the text they are part of is decoded."""
        self._decoded += len(text)
        if text or final:
            for pending in self._unplaced:
                pending.end = self._decoded
            self._filter.place(self._unplaced)
            self._unplaced.clear()

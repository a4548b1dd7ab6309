"""What a format's parser works with: the text to read, the events to write, the call being made.

Not here: any format, and the order of reasoning, text and calls (flow.py).
"""

from __future__ import annotations

import json
import secrets
import string
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ftman.chat.formats.reader import BrokenCallError, CutCallError, Reader
from ftman.chat.types import TextDelta, ThinkingDelta, TokenText, Tool, ToolCall, ToolCallDelta

ParserEvent = ThinkingDelta | TextDelta | ToolCallDelta | ToolCall
_ID_CHARS = string.ascii_letters + string.digits
_ID_LENGTH = 16
_SPACE = " \t\r\n"


def new_call_id() -> str:
    """A call id that no other call has."""
    return "call_" + "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LENGTH))


class Events:
    """Collects events; neighbours of one kind become one. Tokens go with the end of their text;
    those of marks, which are in no event's text, go with none.

    trims: white space around calls and marks is layout and no part of the text.
    """

    def __init__(self, reader: Reader, *, trims: bool):
        self._reader = reader
        self._trims = trims
        self._events: list[ParserEvent] = []
        self._tokens: deque[tuple[int, TokenText]] = deque()
        self._space = ""
        self._thinking_space = ""

    def place(self, end: int, token: TokenText) -> None:
        """Expect a token whose text ends at a position of the whole reply."""
        self._tokens.append((end, token))

    def pass_mark(self) -> None:
        """What was just read is a mark: its tokens belong to no event."""
        self._due()

    def text(self, text: str) -> None:
        """Text of the answer."""
        if self._trims:
            whole = self._space + text
            kept = whole.rstrip(_SPACE)
            self._space = whole[len(kept) :]
            text = kept
        if text:
            self._add(TextDelta(text, self._due(len(self._space))))

    def thinking(self, text: str) -> None:
        """Text of the reasoning; white space at its end is layout."""
        whole = self._thinking_space + text
        kept = whole.rstrip(_SPACE)
        self._thinking_space = whole[len(kept) :]
        if kept:
            self._add(ThinkingDelta(kept, self._due(len(self._thinking_space))))

    def end_thinking(self) -> None:
        """The reasoning is over."""
        self._thinking_space = ""

    def call(self, delta: ToolCallDelta) -> None:
        """A piece of a call."""
        self._space = ""
        self._add(replace(delta, tokens=self._due()))

    def whole_call(self, call: ToolCall) -> None:
        """A call is complete."""
        self._events.append(call)

    def pass_layout(self) -> None:
        """The white space before the mark that was just read is no text."""
        self._space = ""

    def end(self) -> None:
        """The reply is over: held-back white space is text after all."""
        if self._space:
            space, self._space = self._space, ""
            self._add(TextDelta(space, self._due()))

    def drain(self) -> list[ParserEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def _due(self, held: int = 0) -> tuple[TokenText, ...]:
        """Tokens of what was read, but for the last `held` characters, which are still held."""
        due = []
        while self._tokens and self._tokens[0][0] <= self._reader.position - held:
            due.append(self._tokens.popleft()[1])
        return tuple(due)

    def _add(self, event: ThinkingDelta | TextDelta | ToolCallDelta) -> None:
        last = self._events[-1] if self._events else None
        joined = _joined(last, event)
        if joined is None:
            self._events.append(event)
        else:
            self._events[-1] = joined


class CallWriter:
    """One call on its way out. `write` says what would close the arguments at that moment."""

    def __init__(self, events: Events, index: int, call_id: str, name: str):
        self.name = name
        self.done = False
        self._events = events
        self._index = index
        self._id = call_id
        self._text: list[str] = []
        self._closing = "{}"
        events.call(ToolCallDelta(index, call_id, name))

    def write(self, fragment: str, closing: str) -> None:
        """Add to the arguments' text."""
        if fragment:
            self._text.append(fragment)
            self._closing = closing
            self._events.call(ToolCallDelta(self._index, arguments=fragment))

    def complete(self) -> None:
        """The arguments are whole.   Raises: BrokenCallError when they are no JSON object."""
        try:
            value = json.loads("".join(self._text) or "{}")
        except (ValueError, RecursionError):
            raise BrokenCallError("its arguments are not JSON") from None
        if not isinstance(value, dict):
            raise BrokenCallError("its arguments are no object")
        if not self._text:
            self.write("{}", "")
        self.done = True
        self._events.whole_call(ToolCall(self._index, self._id, self.name, value))

    def close(self) -> None:
        """Give up: what was sent becomes JSON, and no ToolCall is sent."""
        self.done = True
        self.write(self._closing, "")


class Run:
    """One reply being parsed. schemas: the parameters of each tool, by name.

    thinking: whether what comes next is reasoning. notes: what the user must be told.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        parses_calls: bool,
        inside_thinking: bool,
        has_wraps: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ):
        self.reader = Reader()
        self.events = Events(self.reader, trims=parses_calls or has_wraps)
        self.parses_calls = parses_calls
        self.thinking = inside_thinking
        self.notes: list[str] = []
        self.schemas: Mapping[str, Mapping[str, Any]] = {t.name: t.parameters for t in tools}
        self._new_id = new_id
        self._num_calls = 0
        self._call: CallWriter | None = None

    def call(self, name: str, call_id: str = "") -> CallWriter:
        """Announce a call.   Raises: BrokenCallError for a call without a name."""
        if not name:
            raise BrokenCallError("it has no name")
        index, self._num_calls = self._num_calls, self._num_calls + 1
        self._call = CallWriter(self.events, index, call_id or self._new_id(), name)
        return self._call

    def begin_call(self, mark: str) -> None:
        """A call begins with `mark`, which was just read."""
        self._call = None
        self.reader.record(mark)

    def give_up(self, error: BrokenCallError) -> bool:
        """End a broken call: its text is text again, or, if it was announced, its arguments are
        closed and a note says so. Tells whether it was announced."""
        call, self._call = self._call, None
        recorded = self.reader.recorded()
        if call is None:
            self.events.text(recorded)
            return False
        if not call.done:
            call.close()
            why = "was cut off" if isinstance(error, CutCallError) else f"is broken: {error}"
            self.notes.append(f"the call of {call.name} {why}; it is not complete")
        return True


def _joined(
    last: ParserEvent | None, event: ThinkingDelta | TextDelta | ToolCallDelta
) -> ParserEvent | None:
    if isinstance(last, TextDelta) and isinstance(event, TextDelta):
        return TextDelta(last.text + event.text, last.tokens + event.tokens)
    if isinstance(last, ThinkingDelta) and isinstance(event, ThinkingDelta):
        return ThinkingDelta(last.text + event.text, last.tokens + event.tokens)
    if (
        isinstance(last, ToolCallDelta)
        and isinstance(event, ToolCallDelta)
        and last.index == event.index
    ):
        arguments, tokens = last.arguments + event.arguments, last.tokens + event.tokens
        return replace(last, arguments=arguments, tokens=tokens)
    return None

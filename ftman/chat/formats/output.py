"""Generated text to events: reasoning, answer and tool calls told apart while they stream.

However the text is cut into pieces, the events add up to the same. Not here: the formats, stop
strings (../parse.py), and what a request makes of the events (service/generate.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ftman.chat.formats.base import ChatFormat
from ftman.chat.formats.flow import marked
from ftman.chat.formats.run import ParserEvent, Run
from ftman.chat.types import TextDelta, Tool


class OutputParser:
    """Parses one reply of a format.

    tools: what may be called; None = text is never a call. A name that is not among them is passed
    on all the same: clients answer it, and the model recovers. inside_thinking: the prompt ended
    with the mark that opens reasoning. notes: what the user must be told, complete after `finish`.
    """

    def __init__(
        self, fmt: ChatFormat, tools: Sequence[Tool] | None, *, inside_thinking: bool = False
    ):
        self._run = Run(
            tools or (),
            parses_calls=tools is not None and fmt.has_calls,
            inside_thinking=inside_thinking and fmt.reasoning is not None,
            has_wraps=bool(fmt.wraps),
            new_id=fmt.call_id,
        )
        self._fed = 0
        self._steps = (fmt.parse or marked)(self._run, fmt)
        self._over = False
        self._advance()

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._run.thinking

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must be told about this reply."""
        return tuple(self._run.notes)

    def feed(self, delta: TextDelta) -> list[ParserEvent]:
        """Take generated text; returns what is settled."""
        start, self._fed = self._fed, self._fed + len(delta.text)
        end = self._fed
        ends = []
        for token in reversed(delta.tokens):
            ends.append((max(start, end), token))
            end -= len(token.text)
        for at, token in reversed(ends):
            self._run.events.place(at, token)
        self._run.reader.buffer += delta.text
        self._advance()
        return self._run.events.drain()

    def finish(self) -> list[ParserEvent]:
        """End the reply; a call that is not whole is given back as text or closed with a note."""
        self._run.reader.ended = True
        self._advance()
        self._run.events.end()
        return self._run.events.drain()

    def _advance(self) -> None:
        if not self._over:
            self._over = next(self._steps, self) is self

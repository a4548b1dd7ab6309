"""One reply, from token events to chat events: text, parser, stop strings, counts.

Stop strings end the answer: they are looked for in its text, not in reasoning and not in calls,
so that "\\n\\n" does not end a model's thoughts. Not here: leases and accounting of time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftman.chat.formats import plain
from ftman.chat.formats.base import ChatFormat
from ftman.chat.formats.output import OutputParser
from ftman.chat.formats.run import ParserEvent
from ftman.chat.parse import StopFilter, TextStream, TokenEvent
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import TextDelta, ThinkingDelta, Tool, ToolCall


@dataclass(frozen=True)
class ReplyRules:
    """How a reply is read.

    tools: what may be called; None = text is never a call. inside_thinking: the prompt ended with
    the mark that opens reasoning. shows_thinking: else reasoning is told apart and left out.
    one_call: the reply ends with its first call. must_call: it holds nothing but calls, so that the
    beginning of one at its end is no text.
    """

    format: ChatFormat = plain.FORMAT
    tools: tuple[Tool, ...] | None = None
    inside_thinking: bool = False
    shows_thinking: bool = True
    one_call: bool = False
    must_call: bool = False

    @property
    def parses(self) -> bool:
        """Whether there is anything but text to be found."""
        fmt = self.format
        return fmt.parse is not None or fmt.reasoning is not None or bool(fmt.calls and self.tools)


class Reply:
    """Reads one reply. enough: nothing more is wanted, though the engine may go on."""

    def __init__(self, tokenizer: Tokenizer, rules: ReplyRules, stop: tuple[str, ...]):
        self._rules = rules
        self._parser: OutputParser | None = None
        self._call_made = False
        self._nameless = False
        self.thinking_tokens = 0
        self._stops = StopFilter(stop)
        if rules.parses:
            self._text = TextStream(tokenizer, (), rules.format.visible)
            self._parser = OutputParser(
                rules.format, rules.tools, inside_thinking=rules.inside_thinking
            )
        else:
            self._text = TextStream(tokenizer, stop)

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer, None while none did."""
        return self._stops.stopped or self._text.stopped

    @property
    def enough(self) -> bool:
        """Whether the reply is over, though the engine may go on."""
        return self._call_made or self.stopped is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must be told; complete after `finish`."""
        notes = self._parser.notes if self._parser is not None else ()
        if self._nameless:
            notes += ("a call was cut off before its tool was named; it is left out",)
        if self.thinking_tokens and not self._rules.shows_thinking:
            notes += (
                f"the model reasoned although thinking was switched off: {self.thinking_tokens} "
                "tokens are not shown",
            )
        return notes

    def feed(self, event: TokenEvent) -> list[ParserEvent]:
        """Take generated tokens; returns what is settled."""
        deltas = self._text.feed(event)
        if self._parser is None:
            return list(deltas)
        events = [event for delta in deltas for event in self._parser.feed(delta)]
        if self._parser.thinking:
            self.thinking_tokens += len(event.token_ids)
        return self._wanted(events)

    def finish(self) -> list[ParserEvent]:
        """The engine has ended; returns what was held back."""
        if self.enough:
            return []
        deltas = self._text.finish()
        if self._parser is None:
            return list(deltas)
        events = [event for delta in deltas for event in self._parser.feed(delta)]
        events += self._parser.finish()
        if self._rules.must_call:
            texts = [event for event in events if isinstance(event, TextDelta)]
            self._nameless = any(delta.text.strip() for delta in texts)
            events = [event for event in events if not isinstance(event, TextDelta)]
        return [*self._wanted(events), *self._stops.push("", final=True)]

    def _wanted(self, events: list[ParserEvent]) -> list[ParserEvent]:
        wanted: list[ParserEvent] = []
        for event in events:
            if self.enough:
                break
            if isinstance(event, TextDelta):
                wanted += self._stops.feed(event)
            elif isinstance(event, ThinkingDelta):
                wanted += [event] if self._rules.shows_thinking else []
            else:
                # what a stop string might have begun with is text: a call came instead
                wanted += self._stops.push("", final=True)
                wanted.append(event)
                self._call_made = self._rules.one_call and isinstance(event, ToolCall)
        return wanted

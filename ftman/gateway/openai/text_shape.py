"""text_completion; the chunks bear the same name. Offsets of log probabilities are kept here."""

from __future__ import annotations

from typing import Any

from ftman.chat.types import ChatEvent, TextDelta
from ftman.gateway.openai.encode import Collected, answer_head
from ftman.gateway.openai.logprobs import legacy_logprobs
from ftman.gateway.routes import Call


class TextShape:
    """See encode.Shape."""

    chunk_object = "text_completion"
    whole_object = "text_completion"

    def __init__(self, call: Call, model: str, num_choices: int, *, with_logprobs: bool):
        self.head = answer_head(call, "cmpl", model)
        self.num_choices = num_choices
        self._with_logprobs = with_logprobs
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """None: text starts at once."""
        return None

    def delta(self, index: int, event: ChatEvent) -> dict[str, Any] | None:
        """New text; a raw completion has nothing else."""
        if not isinstance(event, TextDelta):
            return None
        tokens = event.tokens if self._with_logprobs else ()
        if not event.text and not tokens:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + len(event.text)
        logprobs = legacy_logprobs(tokens, offset) if tokens else None
        return _choice(index, event.text, logprobs, None)

    def end(self, index: int, done: Collected) -> dict[str, Any]:
        """The finish reason, with no text."""
        return _choice(index, "", None, done.finish.reason)

    def whole(self, index: int, done: Collected) -> dict[str, Any]:
        """A complete text; with echo its log probabilities cover the prompt too."""
        logprobs = None
        if self._with_logprobs:
            tokens = [*(t for t in done.finish.prompt_tokens if t), *done.tokens]
            start = 0
            if not done.finish.prompt_tokens:
                start = sum(map(len, done.texts)) - sum(len(t.text) for t in done.tokens)
            logprobs = legacy_logprobs(tokens, max(0, start))
        return _choice(index, "".join(done.texts), logprobs, done.finish.reason)


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

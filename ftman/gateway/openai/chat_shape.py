"""chat.completion and its chunks: what text, reasoning and calls look like on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftman.chat.types import ChatEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ftman.gateway.openai.encode import Collected, answer_head
from ftman.gateway.openai.logprobs import chat_logprobs
from ftman.gateway.routes import Call


@dataclass(frozen=True)
class ChatWishes:
    """What the request says about the form of its answer."""

    with_logprobs: bool = False
    with_reasoning: bool = True
    legacy_calls: bool = False
    service_tier: str = ""


class ChatShape:
    """See encode.Shape."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def __init__(self, call: Call, model: str, wishes: ChatWishes):
        self.head = answer_head(call, "chatcmpl", model)
        if wishes.service_tier:
            self.head["service_tier"] = "default"
        self._wishes = wishes

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role, once."""
        return _choice(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, event: ChatEvent) -> dict[str, Any] | None:
        """New text, reasoning or a piece of a call; None where nothing is to be told."""
        if isinstance(event, TextDelta):
            return self._text(index, event)
        if isinstance(event, ThinkingDelta):
            if not event.text or not self._wishes.with_reasoning:
                return None
            return _choice(index, _reasoning(event.text))
        if isinstance(event, ToolCallDelta):
            return _choice(index, self._call_piece(event))
        return None

    def _text(self, index: int, event: TextDelta) -> dict[str, Any] | None:
        tokens = event.tokens if self._wishes.with_logprobs else ()
        if not event.text and not tokens:
            return None
        choice = _choice(index, {"content": event.text})
        return choice | ({"logprobs": chat_logprobs(tokens)} if tokens else {})

    def _call_piece(self, event: ToolCallDelta) -> dict[str, Any]:
        function = {"name": event.name} if event.name else {}
        function |= {"arguments": event.arguments}
        if self._wishes.legacy_calls:
            return {"function_call": function}
        # Accumulators join strings: id, type and name may come once per call, and only then.
        opening = {"id": event.id, "type": "function"} if event.id else {}
        return {"tool_calls": [{"index": event.index} | opening | {"function": function}]}

    def end(self, index: int, done: Collected) -> dict[str, Any]:
        """The finish reason, alone."""
        return _choice(index, {}) | {"finish_reason": self._reason(done)}

    def whole(self, index: int, done: Collected) -> dict[str, Any]:
        """A complete message."""
        text, thinking = "".join(done.texts), "".join(done.thinking)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not done.calls else None,
            "refusal": None,
        }
        if thinking and self._wishes.with_reasoning:
            message |= _reasoning(thinking)
        calls = done.calls_in_order()
        if calls and self._wishes.legacy_calls:
            message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
        elif calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        with_logprobs = self._wishes.with_logprobs
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(done.tokens) if with_logprobs else None,
            "finish_reason": self._reason(done),
        }

    def _reason(self, done: Collected) -> str:
        # A call that broke off is told, and closed, but it is no reason to act.
        if done.finish.reason == "length" or not done.whole_calls:
            return done.finish.reason
        return "function_call" if self._wishes.legacy_calls else "tool_calls"


def _reasoning(text: str) -> dict[str, Any]:
    # Clients read one name or the other; both stand for the same text.
    return {"reasoning_content": text, "reasoning": text}


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": None}

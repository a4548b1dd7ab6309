"""Input items as turns: what belongs to one assistant turn is put together again.

Items of hosted tools cannot be shown to a model here; they are left out, and that is said.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.types import Message
from ftman.gateway.body import Fields
from ftman.gateway.openai.messages import (
    Conversation,
    call_value,
    content_text,
    join_leading_system,
)
from ftman.gateway.openai.tools import FREE_TEXT, Toolbox

_ROLES = ("user", "assistant", "system", "developer")
_SEALED = "ft-plain-1:"
"""Marks our own "encrypted" reasoning: the text itself, for clients that send back only that."""


def seal(text: str) -> str:
    """Reasoning as `encrypted_content`."""
    return _SEALED + base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def _unseal(sealed: str) -> str:
    if not sealed.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(sealed[len(_SEALED) :]).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


@dataclass
class _Pending:
    """An assistant turn that may grow."""

    texts: list[str] = field(default_factory=list)
    thinking: str = ""
    calls: list[Mapping[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.texts or self.thinking or self.calls)


class Turns:
    """Reads items one by one. `messages` is complete after `finish`."""

    def __init__(self, talk: Conversation, toolbox: Toolbox):
        self._talk = talk
        self._toolbox = toolbox
        self._messages: list[Message] = []
        self._pending = _Pending()
        self._held: list[Message] = []
        self._unanswered: list[str] = []
        self._readers: dict[str, Callable[[Fields], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
        }

    def read(self, item: Fields) -> None:
        """Take in one item.   Raises: FieldError naming it."""
        kind = item.text("type") or ("message" if item.has("role") else "")
        reader = self._readers.get(kind)
        if reader is not None:
            reader(item)
        elif kind:
            self._talk.warn(f"input items of type {kind[:40]} were left out")
        else:
            item.invalid("type", "is missing")

    def finish(self) -> tuple[Message, ...]:
        """All turns."""
        self._flush()
        self._release()
        return join_leading_system(self._messages)

    def _message(self, item: Fields) -> None:
        role = item.text("role")
        if role not in _ROLES:
            item.invalid("role", f"must be one of {', '.join(_ROLES)}, not {role[:20]!r}")
        text = content_text(item, self._talk)
        if role == "assistant":
            if self._pending.texts and not self._pending.calls:
                self._flush()
            self._pending.texts.append(text)
            return
        self._flush()
        message = Message("system" if role == "developer" else role, text)
        # Results stand directly behind their calls; what a client put between them comes after.
        (self._held if self._unanswered else self._messages).append(message)

    def _reasoning(self, item: Fields) -> None:
        if self._pending.texts or self._pending.calls:
            self._flush()
        self._pending.thinking += _reasoning_text(item)

    def _function_call(self, item: Fields) -> None:
        self._call(item, item.get("arguments"))

    def _custom_call(self, item: Fields) -> None:
        self._call(item, {FREE_TEXT: item.text("input")})

    def _call(self, item: Fields, arguments: Any) -> None:
        if not item.text("name"):
            item.invalid("name", "is missing")
        if not self._unanswered:
            self._release()
        name = self._toolbox.model_name(item.text("name"), item.text("namespace"))
        call_id = item.text("call_id") or item.text("id")
        self._pending.calls.append(call_value(call_id, name, arguments))
        self._unanswered.append(call_id)

    def _output(self, item: Fields) -> None:
        self._flush()
        call_id = item.text("call_id")
        text = content_text(item, self._talk, "output", in_result=True)
        self._messages.append(Message("tool", text, tool_call_id=call_id))
        if call_id in self._unanswered:
            self._unanswered.remove(call_id)
        if not self._unanswered:
            self._release()

    def _flush(self) -> None:
        pending, self._pending = self._pending, _Pending()
        if pending:
            text = "".join(pending.texts)
            calls = tuple(pending.calls)
            self._messages.append(Message("assistant", text, pending.thinking, tool_calls=calls))

    def _release(self) -> None:
        self._messages += self._held
        self._held = []


def _reasoning_text(item: Fields) -> str:
    """The text in whichever of three forms the client kept it."""
    for name in ("content", "summary"):
        if name == "summary" and (text := _unseal(item.text("encrypted_content"))):
            return text
        parts = item.objects(name, "object")
        text = "".join(part.text("text") for part in parts)
        if text:
            return text
    return ""

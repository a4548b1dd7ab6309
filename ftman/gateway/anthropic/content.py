"""Messages and their content blocks, as turns that a chat template knows.

Which tools a request has is tools.py's; the fields around the messages are request.py's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.types import Message
from ftman.errors import UnsupportedError
from ftman.gateway.body import FieldError, Fields
from ftman.names import printable

log = logging.getLogger(__name__)

TOOL_ID_PREFIX = "toolu_"
"""Put before a call's own id on the way out and taken off on the way in, so that templates which
print ids see the same in every dialect."""

BILLING_HEAD = "x-anthropic-billing-header"
"""Claude Code's first system text: it differs between conversations and says nothing to a model."""

_ROLES = ("user", "assistant", "system")
_HOSTED_SUFFIXES = ("_tool_result", "_tool_use")
_NO_IMAGE = "[an image was left out: this model reads text only]"


@dataclass
class _Turn:
    """One message of the request, while its blocks are read."""

    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[Mapping[str, Any]] = field(default_factory=list)


class Conversation:
    """Reads messages in order. describe: the definition of a tool by its name, for references."""

    def __init__(self, describe: Callable[[str], str]):
        self._describe = describe
        self._names: dict[str, str] = {}
        self._messages: list[Message] = []

    def read(self, fields: Fields) -> tuple[Message, ...]:
        """All turns of a request.   Raises: FieldError, UnsupportedError."""
        items = fields.objects("messages", "object")
        if not items:
            raise FieldError("messages: at least one message is required", "messages")
        system = system_text(fields)
        if system:
            self._messages.append(Message("system", system))
        for index, item in enumerate(items):
            self._read_one(item, is_last=index == len(items) - 1, later=items[index + 1 :])
        return tuple(self._messages)

    def _read_one(self, item: Fields, *, is_last: bool, later: Sequence[Fields]) -> None:
        role = item.text("role")
        if role not in _ROLES:
            item.invalid("role", f"must be one of {', '.join(_ROLES)}, not {role[:20]!r}")
        content = item.get("content")
        if content is None:
            item.invalid("content", "is missing")
        if role == "system":
            self._system(item, later)
        elif isinstance(content, str):
            self._add(role, content)
        elif role == "user":
            self._user(item.objects("content", "object"))
        else:
            self._assistant(item.objects("content", "object"), is_last=is_last)

    def _add(self, role: str, text: str) -> None:
        self._messages.append(Message(role, text))

    def _system(self, item: Fields, later: Sequence[Fields]) -> None:
        if item.text("clear_at") == "next_user_message" and _has_user(later):
            return
        content = item.get("content")
        texts = [content] if isinstance(content, str) else []
        for block in [] if isinstance(content, str) else item.objects("content", "object"):
            kind = block.text("type")
            if kind in ("tool_addition", "tool_removal"):
                texts.append(self._tool_change(kind, block.child("tool")))
            else:
                texts.append(_text_of(block))
        text = _lines(text for text in texts if not text.startswith(BILLING_HEAD))
        if text:
            self._add("system", text)

    def _tool_change(self, kind: str, tool: Fields) -> str:
        name = tool.text("name") or tool.text("tool_name") or tool.child("definition").text("name")
        if kind == "tool_removal":
            return f"Tool {name} is no longer available."
        return self._describe(name)

    def _user(self, blocks: Sequence[Fields]) -> None:
        texts: list[str] = []
        had_results = False
        for block in blocks:
            if block.text("type") == "tool_result":
                if texts:
                    self._add("user", _lines(texts))
                    texts = []
                self._tool_result(block)
                had_results = True
            else:
                texts.append(_text_of(block))
        texts = [text for text in texts if text]
        if texts or not had_results:
            self._add("user", _lines(texts))

    def _tool_result(self, block: Fields) -> None:
        call_id = _own_id(block.text("tool_use_id"))
        content = block.get("content")
        if isinstance(content, str):
            text = content
        else:
            text = _lines(self._result_text(item) for item in block.objects("content", "object"))
        if block.flag("is_error", False):
            text = f"Error: {text}"
        name = self._names.get(call_id, "")
        self._messages.append(Message("tool", text, tool_name=name, tool_call_id=call_id))

    def _result_text(self, block: Fields) -> str:
        kind = block.text("type")
        if kind == "tool_reference":
            return self._describe(block.text("tool_name"))
        if kind == "image":
            # It stays in the conversation for ever: an error here would end the whole session.
            return _NO_IMAGE
        return _text_of(block)

    def _assistant(self, blocks: Sequence[Fields], *, is_last: bool) -> None:
        turn = _Turn()
        for block in blocks:
            kind = block.text("type")
            if kind == "thinking":
                turn.thinking.append(block.text("thinking"))
            elif kind == "tool_use":
                turn.calls.append(self._call(block))
            elif kind == "redacted_thinking":
                continue
            else:
                turn.texts.append(_text_of(block))
        if is_last and turn.calls:
            raise FieldError(
                "messages: the last message holds tool_use blocks without their tool_result blocks",
                "messages",
            )
        message = Message(
            "assistant",
            "".join(turn.texts),
            thinking="".join(turn.thinking),
            tool_calls=tuple(turn.calls),
        )
        self._messages.append(message)

    def _call(self, block: Fields) -> Mapping[str, Any]:
        name = block.text("name")
        if not name:
            block.invalid("name", "is missing: a tool_use block names its tool")
        call_id = _own_id(block.text("id"))
        self._names[call_id] = name
        return {"id": call_id, "function": {"name": name, "arguments": block.mapping("input")}}


def system_text(fields: Fields) -> str:
    """The top-level system text: a string, or text blocks, a line each; "" for none."""
    if isinstance(fields.get("system"), str):
        texts = [fields.text("system")]
    else:
        texts = [_text_of(block) for block in fields.objects("system", "object")]
    return _lines(text for text in texts if not text.startswith(BILLING_HEAD))


def _lines(texts: Any) -> str:
    return "\n".join(texts)


def _has_user(items: Sequence[Fields]) -> bool:
    return any(item.get("role") == "user" for item in items)


def _own_id(given: str) -> str:
    return given.removeprefix(TOOL_ID_PREFIX)


def _text_of(block: Fields) -> str:
    """What a block says, in words; "" for what has nothing to say to a model."""
    kind = block.text("type")
    if kind == "text":
        return block.text("text")
    if kind == "image":
        raise UnsupportedError(
            "image blocks are not supported: this model reads text only",
            hint="Send text blocks only.",
        )
    if kind == "document":
        return _document(block)
    if kind == "search_result":
        parts = [_text_of(part) for part in block.objects("content", "object")]
        return _lines(filter(None, (block.text("title"), _plain_source(block), *parts)))
    if kind.endswith(_HOSTED_SUFFIXES):
        # History of tools that another server ran: shown as it is, so that the turn makes sense.
        told = {key: value for key, value in block.values.items() if key != "cache_control"}
        return json.dumps(told, ensure_ascii=False)
    if not kind:
        block.invalid("type", "is missing: a content block names its type")
    log.debug("skipping a content block of type %s", printable(kind)[:40])
    return ""


def _plain_source(block: Fields) -> str:
    source = block.get("source")
    return source if isinstance(source, str) else ""


def _document(block: Fields) -> str:
    source = block.child("source")
    kind = source.text("type")
    if kind == "text":
        text = source.text("data")
    elif kind == "content" and isinstance(source.get("content"), str):
        text = source.text("content")
    elif kind == "content":
        text = _lines(_text_of(part) for part in source.objects("content", "object"))
    else:
        raise UnsupportedError(
            f"document blocks with a {kind[:20] or 'missing'} source are not supported",
            hint="Send the document's text, as a source of type text.",
        )
    return _lines(filter(None, (block.text("title"), block.text("context"), text)))

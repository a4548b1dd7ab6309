"""A conversation in one form, whatever dialect it came in: calls, their results, tools.

So that the same conversation makes the same prompt through every dialect: arguments are mappings
in the order of their keys, results know the name and id of their call, tools are OpenAI's objects
with known keys first. Ids reach the prompt only where a template prints them. Not here: rendering.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftman.chat.formats.base import ChatFormat
from ftman.chat.types import Message, Tool


@dataclass
class _Open:
    """A call that may still get its result."""

    given_id: str
    written_id: str
    name: str
    answered: bool = False


def canonical(messages: Sequence[Message], fmt: ChatFormat) -> tuple[Message, ...]:
    """The same conversation with its calls and results in one form."""
    calls: list[_Open] = []
    return tuple(_canonical(message, fmt, calls) for message in messages)


def tool_objects(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools that a template shows, as it expects them."""
    return [_tool_object(tool) for tool in tools if not tool.deferred]


def _canonical(message: Message, fmt: ChatFormat, calls: list[_Open]) -> Message:
    if message.role == "tool":
        call = _answered_call(message, calls)
        if call is None:
            return message
        call.answered = True
        return dataclasses.replace(message, tool_name=call.name, tool_call_id=call.written_id)
    if not message.tool_calls:
        return message
    objects = []
    for given in message.tool_calls:
        call = _opened(given, fmt, len(calls))
        calls.append(call)
        objects.append(_call_object(given, call))
    return dataclasses.replace(message, tool_calls=tuple(objects))


def _opened(given: Mapping[str, Any], fmt: ChatFormat, number: int) -> _Open:
    function = given.get("function") or {}
    name, given_id = str(function.get("name", "")), str(given.get("id") or "")
    written = given_id
    if fmt.own_id is not None and fmt.written_id is not None and not fmt.own_id(given_id):
        written = fmt.written_id(number, name)
    return _Open(given_id, written, name)


def _call_object(given: Mapping[str, Any], call: _Open) -> dict[str, Any]:
    function = given.get("function") or {}
    arguments = _arguments(function.get("arguments"))
    made: dict[str, Any] = {"id": call.written_id} if call.written_id else {}
    return made | {"type": "function", "function": {"name": call.name, "arguments": arguments}}


def _arguments(given: Any) -> Mapping[str, Any]:
    """A mapping; text that is no JSON object is wrapped in one, since templates iterate over it."""
    if isinstance(given, Mapping):
        return given
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            value = json.loads(given)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    return {"arguments": given}


def _answered_call(message: Message, calls: Sequence[_Open]) -> _Open | None:
    """The call a result belongs to: by id, else by name, else the oldest open one."""
    if message.tool_call_id:
        for call in reversed(calls):
            if call.given_id == message.tool_call_id:
                return call
    waiting = [call for call in calls if not call.answered]
    if message.tool_name:
        return next((call for call in waiting if call.name == message.tool_name), None)
    return waiting[0] if waiting and not message.tool_call_id else None


def _tool_object(tool: Tool) -> dict[str, Any]:
    given = tool.given.get("function") if tool.given else None
    more = {
        key: value
        for key, value in (given or {}).items()
        if key not in ("name", "description", "parameters", "strict")
    }
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    parameters = {**tool.parameters}
    parameters.setdefault("type", "object")
    if len(parameters) == 1:
        parameters["properties"] = {}
    function["parameters"] = parameters
    return {"type": "function", "function": function | more}

"""A conversation through a Go template: the values it sees and the three ways it is run.

Insert mode (prompt and suffix), message mode (the template mentions `.Messages`), else legacy mode:
one run for each user and assistant pair. Not here: the language (gotext), special tokens, ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftman.chat import traced
from ftman.chat.go_template import GoTemplate
from ftman.chat.gotext.values import JsonList, JsonMap, Struct
from ftman.chat.traced import (
    OTHER_VALUE,
    call_origin,
    content_origin,
    detail_origin,
    join,
    thinking_origin,
    trace,
)
from ftman.chat.types import Message

_JOINT = "\n\n"


def render_messages(
    template: GoTemplate, messages: Sequence[Message], values: Mapping[str, Any]
) -> str:
    """Run a template over a conversation; the result knows which text is whose.

    values: `tools` (a list of tool objects) and `think` (true, false or a level), both optional.
    Raises: UsageError "template error: ...".
    """
    system, turns = _collate(messages)
    common = _common(values)
    if template.mentions(".Messages"):
        listed = [_message_struct(turn) for turn in turns]
        tools = _tools(values.get("tools") or ())
        return template.render({**common, "System": system, "Messages": listed, "Tools": tools})
    return _legacy(template, turns, common)


def render_insert(template: GoTemplate, prompt: str, suffix: str, values: Mapping[str, Any]) -> str:
    """Run a template to fill in the middle: only `.Prompt` and `.Suffix` are set."""
    origin = content_origin(0)
    texts = {"Prompt": trace(prompt, origin), "Suffix": trace(suffix, origin)}
    return template.render({**_common(values), **texts})


@dataclass(frozen=True)
class _Turn:
    """One message whose texts know where they come from."""

    role: str
    content: str
    thinking: str
    message: Message
    idx: int


def _collate(messages: Sequence[Message]) -> tuple[str, list[_Turn]]:
    """All system texts joined; neighbours of one role (not tool) joined by a blank line."""
    system: list[str] = []
    turns: list[_Turn] = []
    for idx, message in enumerate(messages):
        turn = _turn(idx, message)
        if message.role == "system":
            system += [_JOINT, turn.content]
        last = turns[-1] if turns else None
        if last is None or last.role != turn.role or turn.role == "tool":
            turns.append(turn)
        elif turn.content:
            turns[-1] = dataclasses.replace(
                last, content=join([last.content, _JOINT, turn.content])
            )
    return join(system[1:]), turns


def _turn(idx: int, message: Message) -> _Turn:
    origin = content_origin(idx)
    role = trace(message.role, detail_origin(idx))
    return _Turn(
        role,
        trace(message.content, origin),
        trace(message.thinking, thinking_origin(idx)),
        message,
        idx,
    )


def _legacy(template: GoTemplate, turns: Sequence[_Turn], common: Mapping[str, Any]) -> str:
    parts: list[str] = []
    pair = {"System": "", "Prompt": "", "Response": ""}
    for turn in turns:
        opens = turn.role == "system" and (pair["Prompt"] or pair["Response"])
        if opens or (turn.role == "user" and pair["Response"]):
            parts.append(template.render({**common, **pair}))
            pair = {"System": "", "Prompt": "", "Response": ""}
        name = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(turn.role)
        if name is not None:
            pair[name] = turn.content
    parts.append(template.render_open({**common, **pair}))
    return join(parts)


def _common(values: Mapping[str, Any]) -> dict[str, Any]:
    think = values.get("think")
    level = think if isinstance(think, str) else ("medium" if think else "")
    return {
        "Response": "",
        "Think": bool(think),
        "ThinkLevel": level,
        "IsThinkSet": think is not None,
    }


def _message_struct(turn: _Turn) -> Struct:
    message, origin = turn.message, detail_origin(turn.idx)
    calls = [
        _call(idx, call, call_origin(turn.idx, idx)) for idx, call in enumerate(message.tool_calls)
    ]
    fields = {
        "Role": turn.role,
        "Content": turn.content,
        "Thinking": turn.thinking,
        "Images": [],
        "ToolCalls": calls,
        "ToolName": trace(message.tool_name, origin),
        "ToolCallID": trace(message.tool_call_id, origin),
    }
    printed = JsonMap(role=turn.role, content=turn.content)
    return Struct(fields, printed)


def _call(idx: int, call: Mapping[str, Any], origin: int) -> Struct:
    function = call.get("function") or {}
    name = trace(str(function.get("name", "")), origin)
    arguments = _marked(function.get("arguments") or {}, origin)
    described = Struct(
        {"Index": idx, "Name": name, "Arguments": arguments},
        JsonMap(index=idx, name=name, arguments=arguments),
    )
    return Struct(
        {"ID": trace(str(call.get("id", "")), origin), "Function": described},
        JsonMap(function=described),
    )


def _tools(tools: Sequence[Mapping[str, Any]]) -> JsonList:
    return JsonList(_tool(tool) for tool in tools)


def _tool(tool: Mapping[str, Any]) -> Struct:
    function = tool.get("function") or {}
    parameters = function.get("parameters") or {}
    schema = Struct(
        {**_fields(parameters), "Properties": _properties(parameters)},
        _marked(parameters, OTHER_VALUE),
    )
    described = Struct({**_fields(function), "Parameters": schema}, _marked(function, OTHER_VALUE))
    fields = {**_fields(tool), "Function": described}
    return Struct(fields, _marked(tool, OTHER_VALUE))


def _properties(parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = parameters.get("properties") or {}
    return {
        trace(str(name), OTHER_VALUE): _property(item)
        for name, item in properties.items()
        if isinstance(item, Mapping)
    }


def _property(item: Mapping[str, Any]) -> Struct:
    fields = _fields(item)
    options = item.get("anyOf")
    if isinstance(options, list):
        fields["AnyOf"] = [_property(option) for option in options if isinstance(option, Mapping)]
    return Struct(fields, _marked(item, OTHER_VALUE))


def _fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """JSON names as Go field names: `description` is `.Description`."""
    return {
        name[:1].upper() + name[1:]: _marked(value, OTHER_VALUE) for name, value in item.items()
    }


def _marked(value: Any, origin: int) -> Any:
    if isinstance(value, str):
        return traced.trace(value, origin)
    if isinstance(value, Mapping):
        pairs: dict[str, Any] = {
            trace(str(name), origin): _marked(item, origin) for name, item in value.items()
        }
        return JsonMap(pairs)
    if isinstance(value, list | tuple):
        return [_marked(item, origin) for item in value]
    return value

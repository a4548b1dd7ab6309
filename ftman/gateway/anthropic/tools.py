"""A request's tools: declarations, deferral, choice. Messages that refer to them: content.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.types import Tool, ToolChoice
from ftman.gateway.body import Fields

PLACEHOLDER = "DeferredToolPlaceholder"
"""Claude Code's dummy that keeps deferral on; no model may ever see or call it."""

_CHOICES = ("auto", "any", "tool", "none")


@dataclass(frozen=True)
class Tools:
    """The tools a model may call, and what the client said about calling them. hosted: names of
    tools that only Anthropic's own servers run."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True
    hosted: tuple[str, ...] = ()

    def describe(self, name: str) -> str:
        """A tool's definition as text, where a search brought it up."""
        for tool in self.tools:
            if tool.name == name:
                return json.dumps(tool.given, ensure_ascii=False)
        return f"Tool {name} is not available."


def parse_tools(fields: Fields) -> Tools:
    """`tools` and `tool_choice`.   Raises: FieldError naming the field."""
    tools: list[Tool] = []
    hosted: list[str] = []
    for item in fields.objects("tools", "object"):
        kind = item.text("type") or "custom"
        if kind != "custom" and not item.has("input_schema"):
            hosted.append(item.text("name") or kind)
        elif item.text("name") != PLACEHOLDER:
            tools.append(_tool(item))
    return _with_choice(fields, tuple(tools), tuple(hosted))


def _tool(item: Fields) -> Tool:
    name = item.text("name")
    if not name:
        item.invalid("name", "is missing: a tool needs a name")
    if "input_schema" not in item.values:
        item.invalid("input_schema", f"is missing: tool {name[:64]!r} declares none")
    schema = {"type": "object"} | item.mapping("input_schema")
    description = item.text("description")
    examples = item.objects("input_examples", "object")
    if examples:
        shown = (json.dumps(example.values, ensure_ascii=False) for example in examples)
        description = "\n".join((description, "Examples of its input:", *shown)).strip()
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = schema
    return Tool(
        name,
        description,
        schema,
        strict=item.flag("strict", False),
        given={"type": "function", "function": function},
        deferred=item.flag("defer_loading", False),
    )


def _with_choice(fields: Fields, tools: tuple[Tool, ...], hosted: tuple[str, ...]) -> Tools:
    choice = fields.child("tool_choice")
    kind = choice.text("type") if choice.values else "auto"
    if kind not in _CHOICES:
        choice.invalid("type", f"must be one of {', '.join(_CHOICES)}, not {kind[:20]!r}")
    parallel = not choice.flag("disable_parallel_tool_use", False)
    if kind in ("any", "tool") and not tools:
        fields.invalid("tool_choice", f"of type {kind!r} needs tools, and the request has none")
    if kind == "tool":
        return Tools(tools, ToolChoice("named", _named(choice, tools, hosted)), parallel, hosted)
    modes = {"any": ToolChoice("required"), "none": ToolChoice("none")}
    return Tools(tools, modes.get(kind, ToolChoice()), parallel, hosted)


def _named(choice: Fields, tools: Sequence[Tool], hosted: Sequence[str]) -> str:
    name = choice.text("name")
    if name in hosted:
        choice.invalid("name", f"names {name[:64]!r}, a tool that only Anthropic's servers run")
    if not any(tool.name == name for tool in tools):
        choice.invalid("name", f"{name[:64]!r} is not one of the request's tools")
    return name

"""Tools a request offers and how free the model is to call them, for chat and for responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ftman.chat.types import Tool, ToolChoice
from ftman.gateway.body import Fields

FREE_TEXT = "input"
"""The one argument that a custom (free text) tool has for the model."""


@dataclass(frozen=True)
class Callee:
    """What the client calls a tool that the model may know under another name."""

    name: str
    namespace: str = ""
    custom: bool = False


@dataclass(frozen=True)
class Toolbox:
    """Tools as the model gets them. callees: model's name -> client's name."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True
    callees: Mapping[str, Callee] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    legacy: bool = False

    def callee(self, model_name: str) -> Callee:
        """Whom a call is for. A name that was never offered is handed on: agents answer to it."""
        if model_name in self.callees:
            return self.callees[model_name]
        bare = [callee for callee in self.callees.values() if callee.name == model_name]
        return bare[0] if len(bare) == 1 else Callee(model_name)

    def model_name(self, name: str, namespace: str = "") -> str:
        """Under which name the model knows a tool of an earlier call."""
        return _find(self.callees, name, namespace) or joined_name(name, namespace)


def joined_name(name: str, namespace: str) -> str:
    """A member's name for the model; the group stands in it, so that groups may share names."""
    return f"{namespace}__{name}" if namespace else name


def _find(callees: Mapping[str, Callee], name: str, namespace: str) -> str:
    for model_name, callee in callees.items():
        if callee.name == name and namespace in ("", callee.namespace):
            return model_name
    return ""


class _Offer:
    """Collects tools and what had to be left out."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.callees: dict[str, Callee] = {}
        self.warnings: list[str] = []

    def add(self, tool: Tool, callee: Callee) -> None:
        if tool.name in self.tools:
            self.warnings.append(f"the tool {tool.name} is there twice; the first one counts")
            return
        self.tools[tool.name] = tool
        self.callees[tool.name] = callee

    def box(self, choice: _Choice, *, parallel: bool, legacy: bool = False) -> Toolbox:
        tools, bound = choice.bind(self)
        warnings = (*self.warnings, *choice.warnings)
        return Toolbox(tools, bound, parallel, self.callees, warnings, legacy)


@dataclass(frozen=True)
class _Choice:
    """A tool_choice as read: how many, and of which names (empty: all)."""

    fields: Fields
    mode: str = "auto"
    names: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    def bind(self, offer: _Offer) -> tuple[tuple[Tool, ...], ToolChoice]:
        if self.mode == "none":
            return (), ToolChoice("none")
        if not offer.tools:
            if self.mode == "required":
                self.fields.invalid("tool_choice", "needs tools, and the request has none")
            return (), ToolChoice()
        if not self.names:
            return tuple(offer.tools.values()), ToolChoice(_mode(self.mode))
        picked = dict.fromkeys(self._model_name(offer, *name) for name in self.names)
        if self.mode == "named":
            return tuple(offer.tools.values()), ToolChoice("named", next(iter(picked)))
        if self.mode == "required" and len(picked) == 1:
            return (offer.tools[next(iter(picked))],), ToolChoice("named", next(iter(picked)))
        return tuple(offer.tools[name] for name in picked), ToolChoice(_mode(self.mode))

    def _model_name(self, offer: _Offer, name: str, namespace: str) -> str:
        found = _find(offer.callees, name, namespace)
        if not found:
            self.fields.invalid("tool_choice", f"names {name[:64]!r}, which is not in tools")
        return found


def _mode(mode: str) -> Any:
    return "required" if mode == "required" else "auto"


def chat_tools(fields: Fields) -> Toolbox:
    """`tools` and `tool_choice` of a chat request, or the `functions` they replaced.

    Raises: FieldError naming the tool or the choice that is wrong.
    """
    offer = _Offer()
    legacy = fields.has("functions")
    if legacy and fields.has("tools"):
        fields.invalid("functions", "was replaced by tools; send one of the two")
    for item in fields.objects("functions", "object"):
        offer.add(_function(item), Callee(item.text("name")))
    for item in fields.objects("tools", "object"):
        kind = item.text("type", "function")
        if kind == "custom":
            name = item.child("custom").text("name")[:64]
            item.invalid("type", f"is 'custom' ({name}); in chat only function tools are taken")
        if kind == "function":
            inner = item.child("function")
            offer.add(_function(inner), Callee(inner.text("name")))
        else:
            offer.warnings.append(f"the hosted tool {kind[:40]} is not available here")
    if legacy:
        choice = _legacy_choice(fields)
        return offer.box(choice, parallel=False, legacy=True)
    parallel = fields.flag("parallel_tool_calls", True)
    return offer.box(_choice(fields, hosted=False), parallel=parallel)


def response_tools(fields: Fields) -> Toolbox:
    """`tools` of a responses request: functions, groups of them, free text, hosted ones.

    Raises: FieldError naming the tool or the choice that is wrong.
    """
    offer = _Offer()
    for item in fields.objects("tools", "object"):
        kind = item.text("type", "function")
        if kind == "function":
            offer.add(_function(item), Callee(item.text("name")))
        elif kind == "namespace":
            _add_group(offer, item)
        elif kind == "custom":
            _add_custom(offer, item, "")
        else:
            offer.warnings.append(f"the hosted tool {kind[:40]} is not available here")
    parallel = fields.flag("parallel_tool_calls", True)
    return offer.box(_choice(fields, hosted=True), parallel=parallel)


def _add_group(offer: _Offer, group: Fields) -> None:
    namespace = group.text("name")
    if not namespace:
        group.invalid("name", "is missing")
    for item in group.objects("tools", "object"):
        kind = item.text("type", "function")
        if kind == "custom":
            _add_custom(offer, item, namespace)
        elif kind == "function":
            tool = _function(item, namespace, group.text("description"))
            offer.add(tool, Callee(item.text("name"), namespace))
        else:
            offer.warnings.append(f"the hosted tool {kind[:40]} is not available here")


def _add_custom(offer: _Offer, item: Fields, namespace: str) -> None:
    rule: dict[str, Any] = {"type": "string"}
    form = item.child("format")
    strict = False
    if form.text("type", "text") == "grammar":
        if form.text("syntax") == "regex":
            rule["pattern"], strict = form.text("definition"), True
        else:
            rule["description"] = "It must obey this Lark grammar:\n" + form.text("definition")
            name = item.text("name")
            offer.warnings.append(f"the grammar of the tool {name} is shown, not enforced")
    schema = {"type": "object", "properties": {FREE_TEXT: rule}, "required": [FREE_TEXT]}
    values = {"name": item.get("name"), "description": item.get("description")}
    plain = replace(item, values=values | {"parameters": schema, "strict": strict})
    offer.add(_function(plain, namespace), Callee(item.text("name"), namespace, custom=True))


def _function(item: Fields, namespace: str = "", group_description: str = "") -> Tool:
    name = item.text("name")
    if not name:
        item.invalid("name", "is missing")
    shown = joined_name(name, namespace)
    parameters = _schema(item.mapping("parameters"))
    description = item.text("description") or group_description
    # Nothing but these three reaches the prompt: markers that agents move about would break the
    # prefix that the cache holds.
    inner: dict[str, Any] = {"name": shown}
    if description:
        inner["description"] = description
    given = {"type": "function", "function": inner | {"parameters": parameters}}
    return Tool(shown, description, parameters, item.flag("strict", False), given)


def _schema(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments are an object, whatever was left out; the order of the keys is the client's."""
    typed = given if "type" in given else {"type": "object"} | given
    return typed if "properties" in typed else typed | {"properties": {}}


def _legacy_choice(fields: Fields) -> _Choice:
    value = fields.get("function_call")
    if value in (None, "", "auto"):
        return _Choice(fields)
    if value == "none":
        return _Choice(fields, "none")
    if isinstance(value, dict):
        return _Choice(fields, "named", ((fields.child("function_call").text("name"), ""),))
    return fields.invalid("function_call", "must be 'none', 'auto' or an object with a name")


def _choice(fields: Fields, *, hosted: bool) -> _Choice:
    if fields.has("function_call"):
        fields.invalid("function_call", "was replaced by tool_choice; it needs functions")
    value = fields.get("tool_choice")
    if value in (None, "", {}):
        return _Choice(fields)
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            fields.invalid("tool_choice", f"must be none, auto or required, not {value[:20]!r}")
        return _Choice(fields, value)
    choice = fields.child("tool_choice")
    kind = choice.text("type")
    if kind in ("function", "custom"):
        return _Choice(fields, "named", (_name_of(choice, kind),))
    if kind == "allowed_tools":
        inner = choice.child("allowed_tools") if choice.has("allowed_tools") else choice
        mode = inner.text("mode", "auto")
        if mode not in ("auto", "required"):
            inner.invalid("mode", f"must be auto or required, not {mode[:20]!r}")
        tools = inner.objects("tools", "object")
        return _Choice(fields, mode, _names_of(tools) or inner.invalid("tools", "is empty"))
    if not hosted:
        choice.invalid("type", f"{kind[:40]!r} is not a choice this server knows")
    told = f"tool_choice names the hosted tool {kind[:40]}, which is not available here"
    return _Choice(fields, "auto", (), (told,))


def _name_of(choice: Fields, kind: str) -> tuple[str, str]:
    inner = choice.child(kind) if choice.has(kind) else choice
    name = inner.text("name")
    return (name, inner.text("namespace")) if name else inner.invalid("name", "is missing")


def _names_of(tools: Sequence[Fields]) -> tuple[tuple[str, str], ...]:
    kinds = ("function", "custom")
    return tuple(
        _name_of(item, item.text("type", "function"))
        for item in tools
        if item.text("type", "function") in kinds
    )

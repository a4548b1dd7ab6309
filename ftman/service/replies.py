"""What a request means for its reply: format, template variables, what a model cannot do.

Not here: rendering (prompts.py), reading the reply (chat/reply.py), constraints (constraints.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftman.catalog.model import Model
from ftman.chat.conversation import tool_objects
from ftman.chat.formats.base import ChatFormat
from ftman.chat.formats.registry import detect, format_named, with_calls
from ftman.chat.formats.switch import think_values
from ftman.chat.render import ChatTemplate, capabilities_of
from ftman.chat.reply import ReplyRules
from ftman.chat.types import ChatRequest, CompletionRequest, Prompt, Tool
from ftman.errors import UsageError

_TAIL_CHARS = 256


def format_of(model: Model, template: ChatTemplate) -> ChatFormat:
    """The chat format of a model: declared as its PARSER, else found by its template."""
    declared = format_named(model.parser) if model.parser else None
    if declared is not None:
        return declared
    fmt = detect(template.go or template.jinja)
    jinja = "" if template.go else template.jinja
    shows_tools = ".Tools" in template.go or "tools" in jinja or "tool_call" in jinja
    return with_calls(fmt) if shows_tools else fmt


def format_text(model: Model, template: ChatTemplate) -> str:
    """The chat format of a model and why it is that one, for people."""
    name = format_of(model, template).name
    if not model.parser:
        return f"{name} (by its template)"
    if format_named(model.parser) is None:
        return f"{name} (by its template; PARSER {model.parser[:40]} is not known)"
    return f"{name} (declared)"


def refuse_unable(
    request: ChatRequest | CompletionRequest, model: Model, template: ChatTemplate
) -> tuple[str, ...]:
    """Refuse tools and thinking where the model has neither; what is let pass is noted.

    Raises: UsageError with Ollama's texts.
    """
    tools = isinstance(request, ChatRequest) and request.tools
    if not tools and not request.think:
        return ()
    able = {*model.capabilities, *capabilities_of(template, model.parser)}
    if tools and "tools" not in able:
        raise UsageError(f"{model.name.full} does not support tools", code="no_tools")
    if not request.think or "thinking" in able:
        return ()
    if not request.think_if_able:
        raise UsageError(f'"{request.model}" does not support thinking', code="no_thinking")
    return (f"{model.name.short} does not support thinking; it answers without",)


def shown_tools(request: ChatRequest) -> tuple[Tool, ...] | None:
    """The tools that may be called; None when the request has none or forbids calls."""
    if not request.tools or request.tool_choice.mode == "none":
        return None
    return request.tools


def template_values(
    request: ChatRequest | CompletionRequest,
    fmt: ChatFormat,
    template: ChatTemplate,
    given: Mapping[str, Any],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Variables of the template: tools, thinking, and over them what the client gave itself."""
    able = fmt.reasoning is not None or bool(template.go)
    think = request.think if able else None
    values, notes = think_values(fmt, template.go or template.jinja, think)
    tools = shown_tools(request) if isinstance(request, ChatRequest) else None
    if tools is not None:
        values["tools"] = tool_objects(tools)
    return {**values, **given}, notes


def reply_rules(
    request: ChatRequest | CompletionRequest, fmt: ChatFormat, prompt: Prompt
) -> ReplyRules:
    """How the reply to a rendered prompt is read."""
    tools, one_call, must_call = None, False, False
    if isinstance(request, ChatRequest):
        tools = shown_tools(request)
        must_call = request.tool_choice.mode in ("required", "named")
        one_call = not request.parallel_tool_calls or request.tool_choice.mode == "named"
    start = fmt.reasoning.start if fmt.reasoning is not None else ""
    tail = prompt.text[-_TAIL_CHARS:].rstrip()
    return ReplyRules(
        format=fmt,
        tools=tools,
        inside_thinking=bool(start) and tail.endswith(start),
        shows_thinking=request.think is not False,
        one_call=one_call,
        must_call=must_call,
    )

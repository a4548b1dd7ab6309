"""What a request demands of its reply, as one constraint for the engine.

The manager composes text only; the engine compiles it, and refuses what it cannot.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Literal

from ftengine.protocol import Constraint as WireConstraint
from ftman.chat.formats.grammar import Demand, compose
from ftman.chat.reply import ReplyRules
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import ChatRequest, CompletionRequest, Tool
from ftman.errors import UnsupportedError, UsageError


async def wire_constraint(
    request: ChatRequest | CompletionRequest, rules: ReplyRules, tokenizer: Tokenizer
) -> tuple[WireConstraint | None, tuple[str, ...]]:
    """The engine's constraint, and notes on what could not be demanded.

    Raises: UsageError for a choice of tool that makes no sense; UnsupportedError for a constraint
    that the model's chat format cannot express.
    """
    demand = _demand(request, rules)
    if demand.answer is None and demand.calls == "none":
        return None, ()
    # in a thread: many tools and a vocabulary with a thousand control tokens take their time
    control = tokenizer.control_ids()
    found = await asyncio.to_thread(compose, rules.format, demand, control)
    if found is not None:
        return WireConstraint(found.kind, found.text), ()
    if demand.calls == "may" and demand.answer is None:
        return None, (
            "strict tools are not enforced in this model's chat format while it is free to answer; "
            "tool_choice can enforce them",
        )
    raise UnsupportedError(
        f"a call of a tool cannot be enforced in this model's chat format ({rules.format.name})",
        hint="Leave tool_choice out, or ask for structured output instead.",
    )


def _demand(request: ChatRequest | CompletionRequest, rules: ReplyRules) -> Demand:
    demand = Demand(answer=request.constraint, thinking=_thinking(rules))
    if not isinstance(request, ChatRequest):
        return demand
    choice = request.tool_choice
    tools = rules.tools or ()
    if choice.mode in ("required", "named"):
        return dataclasses.replace(
            demand,
            answer=None,
            calls="must",
            tools=_chosen(tools, choice.name if choice.mode == "named" else ""),
            several=not rules.one_call,
        )
    if tools and (request.constraint is not None or any(tool.strict for tool in tools)):
        return dataclasses.replace(demand, calls="may", tools=tools, several=not rules.one_call)
    return demand


def _chosen(tools: tuple[Tool, ...], name: str) -> tuple[Tool, ...]:
    if not tools:
        raise UsageError("tool_choice asks for a call, and the request has no tools")
    if not name:
        return tools
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        known = ", ".join(tool.name for tool in tools)[:200]
        raise UsageError(
            f"tool_choice names {name[:60]!r}, which is not among the tools", hint=f"Tools: {known}"
        )
    return named


def _thinking(rules: ReplyRules) -> Literal["none", "may", "inside"]:
    if rules.format.reasoning is None:
        return "none"
    if rules.inside_thinking:
        return "inside"
    return "may" if rules.shows_thinking else "none"

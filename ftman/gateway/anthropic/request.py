"""From a body of /v1/messages to a ChatRequest; the same for counting its tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ftman.catalog.model import Model
from ftman.chat.types import ChatRequest, Constraint, Options
from ftman.gateway.anthropic.content import Conversation
from ftman.gateway.anthropic.tools import Tools, parse_tools
from ftman.gateway.body import Fields, Texts
from ftman.gateway.openai.models import find_model
from ftman.gateway.openai.sampling import OPENAI_DEFAULTS
from ftman.gateway.routes import Call

ANTHROPIC_TEXTS = Texts(empty="the request body is empty: send a JSON object", go=False)

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Fields about Anthropic's own machines, contracts and tools, which nothing here could honour, and
# those of other dialects.
_NO_EFFECT = (
    "container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "metadata",
    "safeguards", "service_tier", "speed", "user_profile_id", "workspace_id",
    "keep_alive", "num_ctx", "options", "response_format", "seed", "stop",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A parsed request. stop_sequences: the client's own; warnings: what will have no effect."""

    chat: ChatRequest
    stream: bool
    stop_sequences: tuple[str, ...]
    warnings: tuple[str, ...]


def parse_request(call: Call) -> Asked:
    """The body of /v1/messages or count_tokens.   Raises: FieldError, UnsupportedError."""
    fields = call.fields("MessagesRequest", ANTHROPIC_TEXTS)
    tools = parse_tools(fields)
    messages = Conversation(tools.describe).read(fields)
    options, stops = _options(fields)
    stream = fields.flag("stream", False)
    constraint = _constraint(fields)
    think = _think(fields)
    given = fields.text("model")
    model = find_model(call, given)
    chat = ChatRequest(
        model=given,
        messages=messages,
        options=_layered(call, model, options),
        request_id=call.request_id,
        strict_length=True,
        tools=tools.tools,
        tool_choice=tools.choice,
        parallel_tool_calls=tools.parallel,
        think=think,
        # Claude Code asks every model to think; one that cannot must still answer.
        think_if_able=True,
        constraint=constraint,
    )
    return Asked(chat, stream, stops, _warnings(fields, tools))


def _layered(call: Call, model: Model, options: Options) -> Options:
    own = call.service.own_options(model)
    if options.stop is not None and own.stop:
        # The model's own end marks are not the client's to take away.
        both = dict.fromkeys((*options.stop, *own.stop))
        options = Options(stop=tuple(both)).over(options)
    return options.over(own).over(OPENAI_DEFAULTS)


def _options(fields: Fields) -> tuple[Options, tuple[str, ...]]:
    limit = fields.integer("max_tokens")
    if limit is not None and limit < 0:
        fields.invalid("max_tokens", f"must be 0 or more, not {limit}")
    stops = tuple(stop for stop in fields.strings("stop_sequences") if stop)
    top_k = fields.integer("top_k")
    if top_k is not None and top_k < 0:
        fields.invalid("top_k", f"must be 0 or more, not {top_k}")
    options = Options(
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1),
        top_k=top_k,
        num_predict=limit,
        stop=stops or None,
    )
    return options, stops


def _think(fields: Fields) -> bool | str | None:
    """thinking and output_config.effort: off, on, a level, or None for the model's own way."""
    effort = fields.child("output_config").text("effort")
    if effort and effort not in _EFFORTS:
        fields.child("output_config").invalid("effort", f"must be one of {', '.join(_EFFORTS)}")
    thinking = fields.child("thinking")
    kind = thinking.text("type")
    budget = thinking.integer("budget_tokens")
    if budget is not None and budget < 1 and kind != "disabled":
        thinking.invalid("budget_tokens", f"must be 1 or more, not {budget}")
    if thinking.values and not kind:
        thinking.invalid("type", "is missing")
    if kind == "disabled" or effort == "none":
        return False
    if effort:
        return effort
    return True if kind in ("enabled", "adaptive", "between_tools") else None


def _constraint(fields: Fields) -> Constraint | None:
    config = fields.child("output_config")
    holder, name = (config, "format") if config.has("format") else (fields, "output_format")
    if not holder.has(name):
        return None
    wanted = holder.child(name)
    kind = wanted.text("type")
    if kind != "json_schema":
        wanted.invalid("type", f"must be 'json_schema', not {kind[:20]!r}")
    if not isinstance(wanted.get("schema"), dict):
        wanted.invalid("schema", "is missing: a JSON schema as an object")
    return Constraint("json_schema", json.dumps(wanted.get("schema"), ensure_ascii=False))


def _warnings(fields: Fields, tools: Tools) -> tuple[str, ...]:
    idle = [name for name in _NO_EFFECT if fields.has(name)]
    thinking, output = fields.child("thinking"), fields.child("output_config")
    idle += ["thinking.budget_tokens"] if thinking.has("budget_tokens") else []
    idle += ["thinking.display"] if thinking.text("display") in ("omitted", "updates") else []
    idle += ["output_config.task_budget"] if output.has("task_budget") else []
    told = [f"no effect on this server: {', '.join(idle)}"] if idle else []
    if tools.hosted:
        names = ", ".join(name[:40] for name in tools.hosted)
        told.append(f"left out, since only Anthropic's servers run them: {names}")
    return tuple(told)

"""POST /v1/chat/completions: what a request means. encode.py writes the answer."""

from __future__ import annotations

from ftman.chat.types import ChatRequest
from ftman.gateway.body import OPENAI_TEXTS, Fields
from ftman.gateway.openai import no_effect
from ftman.gateway.openai.chat_shape import ChatShape, ChatWishes
from ftman.gateway.openai.encode import answer
from ftman.gateway.openai.formats import parse_constraint
from ftman.gateway.openai.messages import Conversation, chat_messages, check_end
from ftman.gateway.openai.models import find_model
from ftman.gateway.openai.sampling import (
    choice_options,
    parse_max_tokens,
    parse_shared,
    parse_top_logprobs,
    with_model,
)
from ftman.gateway.openai.thinking import parse_thinking
from ftman.gateway.openai.tools import chat_tools
from ftman.gateway.routes import Call, Reply, StreamReply


async def chat_completions(call: Call) -> Reply | StreamReply:
    """Continue a conversation, in one piece or as SSE."""
    fields = call.fields("ChatCompletionRequest", OPENAI_TEXTS)
    given = fields.text("model")
    model = find_model(call, given)
    talk = Conversation(model.name.short)
    messages = chat_messages(fields, talk)
    check_end(fields, messages)
    _refuse_unbuilt(fields)
    toolbox = chat_tools(fields)
    limit = parse_max_tokens(fields, "max_completion_tokens", "max_tokens", low=1)
    shared = parse_shared(fields, limit)
    logprobs = _logprobs(fields)
    thinking = parse_thinking(fields)
    options = with_model(call, model, shared.options)
    constraint = parse_constraint(fields)
    # Tokens are counted by their log probabilities, where each chunk has to state the count.
    counting = 0 if shared.continuous_usage else None
    streams = [
        call.service.chat(
            ChatRequest(
                model=given,
                messages=messages,
                options=choice_options(options, choice),
                keep_alive_s=shared.keep_alive_s,
                logprobs=counting if logprobs is None else logprobs,
                template_values=thinking.values,
                request_id=f"{call.request_id}-{choice}",
                strict_length=True,
                tools=toolbox.tools,
                tool_choice=toolbox.choice,
                parallel_tool_calls=toolbox.parallel,
                think=thinking.think,
                think_if_able=True,
                constraint=constraint,
            )
        )
        for choice in range(shared.num_choices)
    ]
    wishes = ChatWishes(
        logprobs is not None,
        fields.flag("include_reasoning", True),
        toolbox.legacy,
        fields.text("service_tier"),
    )
    warnings = [*talk.warnings, *toolbox.warnings, *_no_effect(fields)]
    return await answer(call, shared, ChatShape(call, given, wishes), streams, warnings)


def _no_effect(fields: Fields) -> list[str]:
    found = no_effect.no_effect(fields, no_effect.CHAT)
    if fields.flag("store", False):
        found.append("store has no effect: chat completions are not kept; /v1/responses are")
    if fields.child("stream_options").flag("include_obfuscation", False):
        found.append("no effect on this server: stream_options.include_obfuscation")
    return found


def _refuse_unbuilt(fields: Fields) -> None:
    code = "unsupported_parameter"
    others = [kind for kind in fields.items("modalities") if kind != "text"]
    if others:
        fields.invalid("modalities", "may hold text only: nothing else is given out", code)
    if fields.has("audio"):
        fields.invalid("audio", "is not given out by this server; leave it out", code)
    if fields.has("chat_template"):
        fields.invalid("chat_template", "is not taken from a request; the model has one", code)


def _logprobs(fields: Fields) -> int | None:
    top = parse_top_logprobs(fields)
    if not fields.flag("logprobs", False):
        if top:
            fields.invalid("top_logprobs", "needs logprobs: true")
        return None
    return top or 0

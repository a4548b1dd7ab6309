"""POST /v1/completions: plain continuation, no chat template. encode.py writes the answer."""

from __future__ import annotations

from dataclasses import dataclass

from ftman.chat.types import CompletionRequest
from ftman.errors import UnsupportedError
from ftman.gateway.body import OPENAI_TEXTS, FieldError, Fields
from ftman.gateway.openai.encode import answer
from ftman.gateway.openai.formats import parse_constraint
from ftman.gateway.openai.models import find_model
from ftman.gateway.openai.no_effect import no_effect
from ftman.gateway.openai.sampling import (
    MAX_CHOICES,
    choice_options,
    parse_max_tokens,
    parse_shared,
    with_model,
)
from ftman.gateway.openai.text_shape import TextShape
from ftman.gateway.routes import Call, Reply, StreamReply

MAX_PROMPTS = 64


@dataclass(frozen=True)
class _Prompt:
    """One prompt: text, or token ids."""

    text: str = ""
    ids: tuple[int, ...] | None = None


async def completions(call: Call) -> Reply | StreamReply:
    """Continue one or several prompts, in one piece or as SSE."""
    fields = call.fields("CompletionRequest", OPENAI_TEXTS)
    prompts = _prompts(fields)
    echo = fields.flag("echo", False)
    shared = parse_shared(fields, parse_max_tokens(fields, "max_tokens", low=0 if echo else 1))
    logprobs = _logprobs(fields)
    _refuse_best_of(fields, shared.num_choices)
    constraint = parse_constraint(fields)
    if echo and shared.stream and logprobs is not None:
        raise FieldError("'echo' with 'logprobs' cannot be streamed; send stream: false", "echo")
    given = fields.text("model")
    model = find_model(call, given)
    suffix = fields.text("suffix")
    if suffix:
        if "insert" not in call.service.capabilities(model):
            raise FieldError(f"{model.name.full} does not support insert", "suffix")
        if prompts[0].ids is not None or echo:
            raise FieldError("'suffix' needs a text prompt and no echo", "suffix")
    options = with_model(call, model, shared.options)
    counting = 0 if shared.continuous_usage else None
    streams = [
        call.service.complete(
            CompletionRequest(
                model=given,
                prompt=prompt.text,
                token_ids=prompt.ids,
                raw=not suffix,
                suffix=suffix,
                echo=echo,
                options=choice_options(options, choice),
                keep_alive_s=shared.keep_alive_s,
                logprobs=counting if logprobs is None else logprobs,
                request_id=f"{call.request_id}-{number}-{choice}",
                strict_length=True,
                constraint=constraint,
            )
        )
        for number, prompt in enumerate(prompts)
        for choice in range(shared.num_choices)
    ]
    shape = TextShape(call, given, shared.num_choices, with_logprobs=logprobs is not None)
    return await answer(call, shared, shape, streams, no_effect(fields))


def _prompts(fields: Fields) -> list[_Prompt]:
    value = fields.get("prompt")
    if isinstance(value, str) and value:
        return [_Prompt(value)]
    if not isinstance(value, list) or not value:
        if value in (None, "", []):
            fields.invalid("prompt", "is empty; send text or token ids")
        fields.wrong("prompt", "string or array", value)
    if all(_is_id(item) for item in value):
        return [_Prompt(ids=tuple(value))]
    if len(value) > MAX_PROMPTS:
        fields.invalid("prompt", f"holds {len(value)} prompts; at most {MAX_PROMPTS} fit")
    return [_one_prompt(fields, item) for item in value]


def _one_prompt(fields: Fields, item: object) -> _Prompt:
    if isinstance(item, str) and item:
        return _Prompt(item)
    if isinstance(item, list) and item and all(_is_id(token) for token in item):
        return _Prompt(ids=tuple(item))
    if item in ("", []):
        fields.invalid("prompt", "holds an empty prompt")
    return fields.wrong("prompt", "string or array of token ids", item)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _logprobs(fields: Fields) -> int | None:
    value = fields.get("logprobs")
    if isinstance(value, bool):
        return 1 if value else None
    number = fields.integer("logprobs")
    if number is not None and not 0 <= number <= 20:
        fields.invalid("logprobs", f"must be between 0 and 20, not {number}")
    return number


def _refuse_best_of(fields: Fields, num_choices: int) -> None:
    best_of = fields.integer("best_of")
    if best_of is None or best_of == num_choices:
        return
    if best_of < num_choices or best_of > MAX_CHOICES:
        fields.invalid("best_of", f"must be between n and {MAX_CHOICES}, not {best_of}")
    raise UnsupportedError("best_of above n is not built yet in this version")

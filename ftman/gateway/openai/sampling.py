"""Request fields that all generating routes share: sampling, stop, limits, streaming."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftman.catalog.model import Model
from ftman.chat.types import Options
from ftman.gateway.body import Fields
from ftman.gateway.ollama.values import parse_keep_alive
from ftman.gateway.routes import Call

MAX_CHOICES = 8
OPENAI_DEFAULTS = Options(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repeat_penalty=1.0)
"""What counts where neither the request nor the model says anything."""

_SEED_LIMIT = 2**63


@dataclass(frozen=True)
class Shared:
    """The parsed fields. continuous_usage: usage in every chunk of a stream."""

    stream: bool
    include_usage: bool
    continuous_usage: bool
    num_choices: int
    options: Options
    keep_alive_s: float | None = None


def parse_shared(fields: Fields, max_tokens: int | None) -> Shared:
    """Sampling and streaming fields.   Raises: FieldError naming the field."""
    stream_options = fields.child("stream_options")
    num_choices = fields.integer("n")
    num_choices = 1 if num_choices is None else num_choices
    if not 1 <= num_choices <= MAX_CHOICES:
        fields.invalid("n", f"must be between 1 and {MAX_CHOICES}, not {num_choices}")
    options = Options(
        temperature=fields.number("temperature", 0, 2),
        top_p=_top_p(fields),
        top_k=_top_k(fields),
        min_p=fields.number("min_p", 0, 1),
        typical_p=fields.number("typical_p", 0, 1),
        repeat_penalty=_repeat_penalty(fields),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        seed=_seed(fields),
        num_predict=max_tokens,
        num_ctx=_num_ctx(fields),
        stop=_stop(fields),
        logit_bias=_logit_bias(fields),
    )
    include_usage = stream_options.flag("include_usage", False)
    return Shared(
        fields.flag("stream", False),
        include_usage,
        include_usage and stream_options.flag("continuous_usage_stats", False),
        num_choices,
        options,
        parse_keep_alive(fields.get("keep_alive")),
    )


def with_model(call: Call, model: Model, options: Options) -> Options:
    """Request over model over this dialect's defaults."""
    return options.over(call.service.own_options(model)).over(OPENAI_DEFAULTS)


def choice_options(options: Options, choice: int) -> Options:
    """Options of the n-th choice: a given seed moves on, or all choices would be equal."""
    if options.seed is None or choice == 0:
        return options
    return replace(options, seed=options.seed + choice)


def parse_max_tokens(fields: Fields, *names: str, low: int) -> int | None:
    """The first of the names that is given.   Raises: FieldError below `low`."""
    for name in names:
        value = fields.integer(name)
        if value is None:
            continue
        if value < low:
            fields.invalid(name, f"must be {low} or more, not {value}")
        return value
    return None


def parse_top_logprobs(fields: Fields) -> int | None:
    """`top_logprobs`, 0 to 20.   Raises: FieldError."""
    top = fields.integer("top_logprobs")
    if top is not None and not 0 <= top <= 20:
        fields.invalid("top_logprobs", f"must be between 0 and 20, not {top}")
    return top


def _top_p(fields: Fields) -> float | None:
    value = fields.number("top_p", 0, 1)
    if value == 0:
        fields.invalid("top_p", "must be above 0 and at most 1")
    return value


def _top_k(fields: Fields) -> int | None:
    value = fields.integer("top_k")
    return None if value is None else max(0, value)


def _num_ctx(fields: Fields) -> int | None:
    """The window, at the place where users of Ollama put it, too."""
    for holder in (fields, fields.child("options")):
        value = holder.integer("num_ctx")
        if value is not None:
            return value if value > 0 else holder.invalid("num_ctx", "must be 1 or more")
    return None


def _repeat_penalty(fields: Fields) -> float | None:
    for name in ("repetition_penalty", "repeat_penalty"):
        value = fields.number(name, 0, 100)
        if value == 0:
            fields.invalid(name, "must be above 0")
        if value is not None:
            return value
    return None


def _seed(fields: Fields) -> int | None:
    seed = fields.integer("seed")
    if seed is not None and not -_SEED_LIMIT <= seed < _SEED_LIMIT:
        fields.invalid("seed", "must be a signed 64-bit integer")
    return seed


def _stop(fields: Fields) -> tuple[str, ...] | None:
    value = fields.get("stop")
    if value is None or value == [] or value == "":
        return None
    stops = (value,) if isinstance(value, str) else fields.strings("stop")
    return tuple(stop for stop in stops if stop) or None


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...] | None:
    found = []
    for key, value in fields.mapping("logit_bias").items():
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            fields.invalid("logit_bias", f"has the key {key[:20]!r}; keys are token ids")
        if value is False:
            value = -100
        if isinstance(value, bool) or not isinstance(value, int | float):
            fields.wrong("logit_bias", "number", value)
        if not -100 <= value <= 100:
            fields.invalid("logit_bias", f"for token {key} must be between -100 and 100")
        found.append((int(key), float(value)))
    return tuple(found) or None

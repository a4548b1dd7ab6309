"""Request fields that chat and plain completions share: sampling, stop, limits, streaming."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ftman.catalog.model import Model
from ftman.chat.types import Options
from ftman.errors import UnsupportedError
from ftman.gateway.body import Fields
from ftman.gateway.routes import Call

MAX_CHOICES = 8
OPENAI_DEFAULTS = Options(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repeat_penalty=1.0)
"""What counts where neither the request nor the model says anything."""

_CONSTRAINTS = (
    "grammar", "json_schema", "regex", "guided_regex", "guided_json", "structured_outputs", "ebnf",
)  # fmt: skip
_SEED_LIMIT = 2**63


@dataclass(frozen=True)
class Shared:
    """The parsed fields."""

    stream: bool
    include_usage: bool
    num_choices: int
    options: Options


def parse_shared(fields: Fields, max_tokens: int | None) -> Shared:
    """Sampling and streaming fields.   Raises: FieldError naming the field, UnsupportedError."""
    stream_options = fields.child("stream_options")
    num_choices = fields.integer("n")
    num_choices = 1 if num_choices is None else num_choices
    if not 1 <= num_choices <= MAX_CHOICES:
        fields.invalid("n", f"must be between 1 and {MAX_CHOICES}, not {num_choices}")
    for name in _CONSTRAINTS:
        if fields.has(name):
            raise UnsupportedError(f"'{name}' (constrained output) is not built yet")
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
        stop=_stop(fields),
        logit_bias=_logit_bias(fields),
    )
    return Shared(
        fields.flag("stream", False),
        stream_options.flag("include_usage", False),
        num_choices,
        options,
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


def _top_p(fields: Fields) -> float | None:
    value = fields.number("top_p", 0, 1)
    if value == 0:
        fields.invalid("top_p", "must be above 0 and at most 1")
    return value


def _top_k(fields: Fields) -> int | None:
    value = fields.integer("top_k")
    return None if value is None else max(0, value)


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


def template_kwargs(fields: Fields) -> dict[str, Any]:
    """`chat_template_kwargs` and the ways to switch thinking, under the template's names.

    Raises: FieldError on a wrong type, UnsupportedError when thinking is asked for.
    """
    kwargs = dict(fields.mapping("chat_template_kwargs"))
    if not isinstance(kwargs.get("enable_thinking", False), bool):
        fields.wrong("chat_template_kwargs", "object with a boolean enable_thinking", kwargs)
    effort = fields.child("reasoning").text("effort") or fields.text("reasoning_effort")
    if effort == "none" or fields.child("thinking").text("type") == "disabled":
        kwargs["enable_thinking"] = False
    elif effort:
        levels = ("minimal", "low", "medium", "high", "xhigh", "ultra", "max")
        if effort not in levels:
            words = ", ".join(f'"{level}"' for level in levels)
            fields.invalid("reasoning_effort", f'is "{effort[:20]}" (must be {words}, or "none")')
        raise UnsupportedError(
            "separating reasoning is not built yet in this version",
            hint='Send reasoning_effort "none", or leave it out.',
        )
    return kwargs

"""Request values that several native routes share, and their exact error texts.

Sources: the JSON rules of Ollama's API; durations are Go's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftman.catalog.model import Model
from ftman.chat.types import Constraint, Options
from ftman.config import parse_duration
from ftman.errors import FtmanError, NotFoundError
from ftman.gateway.body import FieldError, Fields
from ftman.gateway.routes import Call
from ftman.gateway.times import FOREVER_S
from ftman.names import is_valid_name
from ftman.service.options import (
    FLOATS,
    FOREIGN_BOOLS,
    FOREIGN_INTS,
    INTS,
    bad_option,
    option_notes,
)

_INT_LIMIT = 2**63 - 1
_THINK_LEVELS = ("high", "medium", "low", "max")
_THINK_WORDS = '"high", "medium", "low", "max", true, or false'


def parse_options(values: Mapping[str, Any]) -> Options:
    """The `options` object.   Raises: UsageError (status 500, as Ollama's) naming the option."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        if key in INTS or key in FOREIGN_INTS:
            number = _integer(key, value)
            if key in INTS:
                found[key] = number
        elif key in FLOATS:
            found[key] = _float(key, value)
        elif key == "stop":
            found[key] = _strings(key, value)
        elif key in FOREIGN_BOOLS and not isinstance(value, bool):
            raise bad_option(key, "boolean")
    return Options(**found)


def _integer(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_option(key, "integer")
    return int(max(-_INT_LIMIT, min(_INT_LIMIT, value)))


def _float(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 3.4e38:
        raise bad_option(key, "float32")
    return float(value)


def _strings(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise bad_option(key, "array")
    if not all(isinstance(item, str) for item in value):
        raise bad_option(key, "of an array of strings")
    return tuple(item for item in value if item)


def parse_keep_alive(value: Any) -> float | None:
    """Seconds, negative = forever, None = the default.   Raises: FieldError with Go's text."""
    if value is None:
        return None
    if isinstance(value, bool):
        raise FieldError("Unsupported type: 'bool'", "keep_alive")
    if isinstance(value, int | float):
        seconds = float(max(-1, value)) if abs(value) < FOREVER_S else -1.0
        return -1.0 if value < 0 else seconds
    if isinstance(value, str):
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise FieldError(str(error)[:200], "keep_alive") from None
        return -1.0 if seconds < 0 or seconds > FOREVER_S else seconds
    kind = "[]interface {}" if isinstance(value, list) else "map[string]interface {}"
    raise FieldError(f"Unsupported type: '{kind}'", "keep_alive")


@dataclass(frozen=True)
class Common:
    """What generate and chat share. think: None = not given."""

    stream: bool
    options: Options
    keep_alive_s: float | None
    think: bool | str | None
    strict_length: bool
    logprobs: int | None
    constraint: Constraint | None
    render_only: bool
    notes: tuple[str, ...]


def parse_common(fields: Fields) -> Common:
    """Everything but the prompt or the messages.   Raises: FieldError."""
    stream = fields.flag("stream", True)
    truncate, shift = fields.flag("truncate", True), fields.flag("shift", True)
    think = _parse_think(fields.get("think"))
    top = fields.integer("top_logprobs") or 0
    if not 0 <= top <= 20:
        raise FieldError("top_logprobs must be between 0 and 20", "top_logprobs")
    logprobs = top if fields.flag("logprobs", False) else None
    given_options = fields.mapping("options")
    options = parse_options(given_options)
    keep_alive_s = parse_keep_alive(fields.get("keep_alive"))
    constraint = parse_format(fields.get("format"))
    notes = option_notes(given_options)
    if fields.get("shift") is True:
        notes.append(
            "shift is not built: an answer that reaches the end of the context window ends there"
        )
    return Common(
        stream=stream,
        options=options,
        keep_alive_s=keep_alive_s,
        think=think,
        strict_length=not truncate or not shift,
        logprobs=logprobs,
        constraint=constraint,
        render_only=fields.flag("_debug_render_only", False),
        notes=tuple(notes),
    )


def _parse_think(value: Any) -> bool | str | None:
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise FieldError(f"think must be a boolean or string ({_THINK_WORDS})", "think")
    if value not in _THINK_LEVELS:
        raise FieldError(
            f"invalid think value: {json.dumps(value)} (must be {_THINK_WORDS})", "think"
        )
    return value


def parse_format(value: Any) -> Constraint | None:
    """The `format` field.   Raises: FieldError (status 500, as Ollama's) for anything else."""
    if value in (None, ""):
        return None
    if value == "json":
        return Constraint("json")
    if isinstance(value, dict):
        return Constraint("json_schema", json.dumps(value, separators=(",", ":")))
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":"))[:200]
    raise FieldError(
        f'invalid format: {json.dumps(raw)}; expected "json" or a valid JSON Schema object',
        "format",
        status=500,
    )


def refuse_missing(
    call: Call, model: Model, given: str, needs: Sequence[str], think: bool | str | None
) -> None:
    """Refuse a request whose wishes this model cannot meet.   Raises: FieldError, Ollama's texts.

    needs: capabilities in the order in which Ollama names them.
    """
    capabilities = call.service.capabilities(model)
    if think and "thinking" not in capabilities:
        text = f'"{given}" does not support thinking'
        raise FieldError(text + _pull_again(model), "think")
    missing = [need for need in needs if need not in capabilities]
    if missing:
        raise FieldError(f"{model.name.full} does not support " + "\n".join(missing), missing[0])


def effective_think(call: Call, model: Model, think: bool | str | None) -> bool | str | None:
    """Thinking is on where a model can think and nobody said otherwise."""
    if think is None and "thinking" in call.service.capabilities(model):
        return True
    return think


def _pull_again(model: Model) -> str:
    """Old builds of these models exist without the template that knows thinking."""
    names = (model.details.family.lower(), model.name.model.lower())
    if names[0].startswith("qwen3") or names[1] == "deepseek-r1":
        return ". Pull the model again to get the latest version with full thinking support"
    return ""


def find_model(call: Call, given: str) -> Model:
    """The model of a generate or chat request.   Raises: FtmanError with the route texts."""
    if not given:
        raise not_found(f"model '{given}' not found")
    if not is_valid_name(given):
        raise FieldError("invalid model name", "model")
    refuse_cloud(given)
    model = call.service.find(given)
    call.tally.model = given
    if "embedding" in model.capabilities and "completion" not in model.capabilities:
        verb = call.path.rpartition("/")[2]
        raise FieldError(f'"{given}" does not support {verb}', "model")
    return model


def refuse_cloud(given: str) -> None:
    """Names of models on somebody else's servers are recognised and refused."""
    last = given.rpartition("/")[2].lower()
    if last.endswith((":cloud", "-cloud")) and ":" in last:
        raise FtmanError(
            "ollama cloud is disabled: remote model is unavailable", status=403, code="no_cloud"
        )


def not_found(text: str) -> NotFoundError:
    """A 404 with exactly this text."""
    return NotFoundError(text, code="model_not_found")


def required_name(fields: Fields) -> str:
    """`model`, or the older `name`.   Raises: FieldError when both are empty."""
    given = fields.text("model") or fields.text("name")
    if not given:
        raise FieldError("model is required", "model")
    return given

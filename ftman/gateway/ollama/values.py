"""Request values that several native routes share, and their exact error texts.

Sources: the JSON rules of Ollama's API; durations are Go's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ftman.catalog.model import Model
from ftman.chat.types import Options
from ftman.config import parse_duration
from ftman.errors import FtmanError, NotFoundError, UnsupportedError
from ftman.gateway.body import FieldError, Fields
from ftman.gateway.routes import Call
from ftman.gateway.times import FOREVER_S
from ftman.names import is_valid_name
from ftman.service.options import bad_option

log = logging.getLogger(__name__)

_INT_KEYS = {
    "num_ctx", "num_keep", "seed", "num_predict", "top_k", "repeat_last_n", "num_thread",
}  # fmt: skip
_FLOAT_KEYS = {
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty",
}  # fmt: skip
# Load settings of another engine: their types are checked, their values mean nothing here.
_FOREIGN_INTS = {"num_batch", "num_gpu", "main_gpu", "draft_num_predict"}
_FOREIGN_BOOLS = {"use_mmap"}
_INT_LIMIT = 2**63 - 1
_THINK_LEVELS = ("high", "medium", "low", "max")
_THINK_WORDS = '"high", "medium", "low", "max", true, or false'


def parse_options(values: Mapping[str, Any]) -> Options:
    """The `options` object.   Raises: UsageError (status 500, as Ollama's) naming the option."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        if key in _INT_KEYS or key in _FOREIGN_INTS:
            number = _integer(key, value)
            if key in _INT_KEYS:
                found[key] = number
        elif key in _FLOAT_KEYS:
            found[key] = _float(key, value)
        elif key == "stop":
            found[key] = _strings(key, value)
        elif key in _FOREIGN_BOOLS:
            if not isinstance(value, bool):
                raise bad_option(key, "boolean")
        else:
            log.debug("ignoring unknown option %r", key[:80])
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
    notes: tuple[str, ...]


def parse_common(fields: Fields) -> Common:
    """Everything but the prompt or the messages.   Raises: FieldError, UnsupportedError."""
    stream = fields.flag("stream", True)
    truncate, shift = fields.flag("truncate", True), fields.flag("shift", True)
    think = _parse_think(fields.get("think"))
    top = fields.integer("top_logprobs") or 0
    if not 0 <= top <= 20:
        raise FieldError("top_logprobs must be between 0 and 20", "top_logprobs")
    logprobs = top if fields.flag("logprobs", False) else None
    options = parse_options(fields.mapping("options"))
    keep_alive_s = parse_keep_alive(fields.get("keep_alive"))
    _check_format(fields.get("format"))
    if fields.flag("_debug_render_only", False):
        raise UnsupportedError("_debug_render_only is not built yet in this version")
    notes = []
    if fields.get("shift") is True:
        notes.append(
            "shift is not built: an answer that reaches the end of the context window ends there"
        )
    strict = not truncate or not shift
    return Common(stream, options, keep_alive_s, think, strict, logprobs, tuple(notes))


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


def _check_format(value: Any) -> None:
    if value in (None, ""):
        return
    if value == "json" or isinstance(value, dict):
        raise UnsupportedError(
            "structured output (format) is not built yet in this version",
            hint="Ask for JSON in the prompt, and leave `format` out.",
        )
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":"))[:200]
    raise FieldError(
        f'invalid format: {json.dumps(raw)}; expected "json" or a valid JSON Schema object',
        "format",
        status=500,
    )


def refuse_unbuilt(call: Call, model: Model, given: str, fields: Fields, common: Common) -> None:
    """Refuse what this model lacks, and what it has but this version cannot do yet."""
    capabilities = call.service.capabilities(model)
    if fields.items("tools"):
        if "tools" not in capabilities:
            raise FieldError(f"{model.name.full} does not support tools", "tools")
        raise UnsupportedError("tools are not built yet in this version")
    if fields.items("images") or any(
        isinstance(item, dict) and item.get("images") for item in fields.items("messages")
    ):
        raise UnsupportedError("images are not built yet in this version; send text only")
    if common.think:
        if "thinking" not in capabilities:
            raise FieldError(f'"{given}" does not support thinking', "think")
        raise UnsupportedError(
            "separating thinking is not built yet in this version",
            hint="Send `think: false`, or leave it out.",
        )


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


def not_built(what: str) -> NoReturn:
    """A known feature that this version does not have.   Raises: UnsupportedError always."""
    raise UnsupportedError(f"{what} is not built yet in this version", status=501)

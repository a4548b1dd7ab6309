"""FtmanError to each dialect's envelope: one table, nothing else knows these shapes."""

from __future__ import annotations

import json
from typing import Any

from ftman.errors import BusyError, FtmanError
from ftman.gateway.body import FieldError

OLLAMA, OPENAI, ANTHROPIC = "ollama", "openai", "anthropic"
# Texts that clients of Ollama compare: the envelope holds nothing beside them.
_BARE_CODES = frozenset(
    ("model_not_found", "invalid_name", "invalid_request", "bad_option", "no_cloud", "queue_full")
)
_OPENAI_TYPES = {
    401: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def internal_error() -> FtmanError:
    """What a client is told about a fault of ours; the log has the rest."""
    return FtmanError(
        "internal error in the manager; its log holds the details",
        hint="Look at `ft logs`, and report it if it happens again.",
    )


def headers_of(error: FtmanError) -> tuple[tuple[str, str], ...]:
    """Extra headers of an error reply: Retry-After where waiting helps."""
    if isinstance(error, BusyError) or error.status in (429, 503):
        return (("retry-after", str(getattr(error, "retry_after_s", 5))),)
    return ()


def envelope(dialect: str, error: FtmanError, request_id: str = "") -> dict[str, Any]:
    """The JSON object that tells `error` in `dialect`."""
    if dialect == OPENAI:
        return {"error": _openai(error)}
    if dialect == ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(error.status, _broad(error.status, "api_error"))
        inner = {"type": kind, "message": _anthropic_text(error)}
        return {"type": "error", "error": inner, "request_id": request_id}
    told: dict[str, Any] = {"error": error.message}
    if error.code not in _BARE_CODES:
        told["code"] = error.code
        if error.hint:
            told["hint"] = error.hint
    return told


def encode_error(dialect: str, error: FtmanError, request_id: str = "") -> bytes:
    """The envelope as JSON without a newline."""
    return to_json(envelope(dialect, error, request_id))


def to_json(value: Any) -> bytes:
    """JSON as Go writes it: no spaces, UTF-8, and `<`, `>`, `&`, U+2028, U+2029 escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # These five only ever stand inside strings, so replacing in the whole text is safe.
    for character, escaped in _ESCAPES:
        if character in text:
            text = text.replace(character, escaped)
    return text.encode("utf-8", "replace")


_ESCAPES = tuple((ch, f"\\u{ord(ch):04x}") for ch in "<>&\u2028\u2029")


def _openai(error: FtmanError) -> dict[str, Any]:
    param = getattr(error, "param", "") or None
    told: dict[str, Any] = {
        "message": _told(error),
        "type": _OPENAI_TYPES.get(error.status, _broad(error.status, "server_error")),
        "param": param,
        "code": _openai_code(error),
    }
    return told | dict(getattr(error, "extra", {}))


def _openai_code(error: FtmanError) -> str | None:
    if isinstance(error, FieldError):
        return error.code if error.code != "invalid_request" else None
    return error.code or None


def _broad(status: int, ours: str) -> str:
    return "invalid_request_error" if 400 <= status < 500 else ours


def _anthropic_text(error: FtmanError) -> str:
    extra = getattr(error, "extra", {})
    if error.code == "context_length_exceeded" and extra:
        # Claude Code parses both numbers and compacts the conversation; any other text ends it.
        return f"prompt is too long: {extra['n_prompt_tokens']} tokens > {extra['n_ctx']} maximum"
    return _told(error)


def _told(error: FtmanError) -> str:
    if error.hint and error.code not in _BARE_CODES:
        return (
            f"{error.message}. {error.hint}"
            if error.message[-1:].isalnum()
            else (f"{error.message} {error.hint}")
        )
    return error.message

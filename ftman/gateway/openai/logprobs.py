"""Log probabilities in the three shapes of OpenAI's routes.

They are of the model's own distribution: before bias, penalties, constraint and temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ftman.chat.types import TokenText

MIN_LOGPROB = -9999.0
"""JSON has no infinity."""


def chat_logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {"content": token_entries(tokens), "refusal": None}


def token_entries(tokens: Sequence[TokenText]) -> list[dict[str, Any]]:
    """One entry per token with its alternatives; chat and responses share this shape."""
    return [
        _entry(token.text, token.logprob, token.data)
        | {"top_logprobs": [_entry(*alternative) for alternative in token.top]}
        for token in tokens
    ]


def _entry(text: str, logprob: float, data: bytes) -> dict[str, Any]:
    return {"token": text, "logprob": max(MIN_LOGPROB, logprob), "bytes": list(data)}


def legacy_logprobs(tokens: Sequence[TokenText], offset: int) -> dict[str, Any]:
    """Four arrays of equal length. The first token of all has no probability: NaN becomes null."""
    value: dict[str, list[Any]] = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
    }  # fmt: skip
    for token in tokens:
        value["text_offset"].append(offset)
        known = not math.isnan(token.logprob)
        value["tokens"].append(_legacy_text(token.text, token.data))
        value["token_logprobs"].append(max(MIN_LOGPROB, token.logprob) if known else None)
        value["top_logprobs"].append(_legacy_top(token) if known else None)
        offset += len(token.text)
    return value


def _legacy_top(token: TokenText) -> dict[str, float]:
    top: dict[str, float] = {}
    for text, logprob, data in token.top:
        top.setdefault(_legacy_text(text, data), max(MIN_LOGPROB, logprob))
    return top or {_legacy_text(token.text, token.data): max(MIN_LOGPROB, token.logprob)}


def _legacy_text(text: str, data: bytes) -> str:
    """A token that is no whole character is named by its bytes, or several would share a key."""
    if "\ufffd" not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

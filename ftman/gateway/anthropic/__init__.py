"""Anthropic's routes, with and without /v1. Read messages.py first; encode.py writes the answer."""

from collections.abc import Mapping

from ftman.gateway.anthropic.messages import count_tokens, create_message
from ftman.gateway.errors import ANTHROPIC
from ftman.gateway.routes import Route

ROUTES: tuple[Route, ...] = tuple(
    Route("POST", prefix + path, handler, ANTHROPIC, "whole")
    for prefix in ("/v1", "")
    for path, handler in (("/messages", create_message), ("/messages/count_tokens", count_tokens))
)


def dialect_of(path: str, headers: Mapping[str, str]) -> str:
    """ANTHROPIC for paths of this family, and for the shared ones when its client asks; else ""."""
    bare = path.removeprefix("/v1")
    if bare == "/messages" or bare.startswith("/messages/"):
        return ANTHROPIC
    shared = bare == "/models" or bare.startswith("/models/")
    return ANTHROPIC if shared and "anthropic-version" in headers else ""

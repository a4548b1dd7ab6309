"""Which right each route asks of an API key: nothing, "use", or "manage".

A route that nobody put here needs "manage": forgetting one locks it, never opens it.
"""

from __future__ import annotations

from ftman.keys import MANAGE, USE

PUBLIC = ""
_PUBLIC = ("/", "/health", "/ui", "/ui/*")
"""Browsers cannot send a key for a page; its files hold no secret, and what they ask for does."""
_USE = (
    *("/api/version", "/api/status", "/api/tags", "/api/ps", "/api/show"),
    *("/api/generate", "/api/chat", "/api/embed", "/api/embeddings"),
    *("/api/me", "/api/experimental/model-recommendations"),
    *("/api/experimental/web_search", "/api/experimental/web_fetch"),
    *("/api/hello", "/v1/health", "/metrics", "/openapi.json"),
    *("/api/ft/status", "/api/ft/search"),
    *("/api/ft/experts", "/api/ft/queue", "/api/ft/watch", "/api/ft/health"),
)
_USE_DIALECT = (
    *("/chat/completions", "/completions", "/embeddings", "/models", "/models/*"),
    *("/responses", "/responses/*", "/responses/input_tokens", "/responses/compact"),
    *("/messages", "/messages/count_tokens", "/audio/transcriptions"),
    *("/tokenize", "/detokenize", "/tokenizer_info"),
)
_BY_PATH = (
    dict.fromkeys(_PUBLIC, PUBLIC)
    | dict.fromkeys(_USE, USE)
    | {f"{front}{path}": USE for path in _USE_DIALECT for front in ("", "/v1")}
)


def right_of(path: str) -> str:
    """What a route asks for; `path` is the route's own, with its star."""
    return _BY_PATH.get(path, MANAGE)

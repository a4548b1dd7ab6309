"""Probes: /health, and the path that Claude Code asks before its first request."""

from __future__ import annotations

from ftman.gateway.errors import to_json
from ftman.gateway.routes import Call, Reply, Route


async def health(call: Call) -> Reply:
    """GET /health: the manager answers, so it is ready; models are loaded when asked for."""
    return Reply(to_json({"status": "ok"}))


ROUTES: tuple[Route, ...] = tuple(
    Route(method, path, health)
    for path in ("/health", "/v1/health", "/api/hello")
    for method in ("GET", "HEAD")
)

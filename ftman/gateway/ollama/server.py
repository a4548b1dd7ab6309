"""Native routes about the server itself, and those that this version refuses by name."""

from __future__ import annotations

from ftman.gateway.errors import to_json
from ftman.gateway.ollama.values import not_built
from ftman.gateway.routes import Call, Handler, Reply, Route

API_VERSION = "0.12.11"
"""Newest release of Ollama whose routes are all served; clients compare features with it."""


async def root(call: Call) -> Reply:
    """GET /: the text that health checks look for."""
    return Reply(b"Ollama is running", media_type="text/plain; charset=utf-8")


async def version(call: Call) -> Reply:
    """GET /api/version."""
    return Reply(to_json({"version": API_VERSION}))


async def status(call: Call) -> Reply:
    """GET /api/status: there is no cloud behind this server."""
    return Reply(to_json({"cloud": {"disabled": True, "source": "config"}}))


async def recommendations(call: Call) -> Reply:
    """GET /api/experimental/model-recommendations."""
    return Reply(to_json({"recommendations": []}))


def _refusing(what: str) -> Handler:
    async def refuse(call: Call) -> Reply:
        not_built(what)

    return refuse


ROUTES = (
    Route("GET", "/", root),
    Route("HEAD", "/", root),
    Route("GET", "/api/version", version),
    Route("HEAD", "/api/version", version),
    Route("GET", "/api/status", status),
    Route("GET", "/api/experimental/model-recommendations", recommendations),
    Route("POST", "/api/embed", _refusing("embedding (/api/embed)"), body="whole"),
    Route("POST", "/api/embeddings", _refusing("embedding (/api/embeddings)"), body="whole"),
    Route("POST", "/api/me", _refusing("a cloud account (/api/me)"), body="whole"),
    Route("POST", "/api/signout", _refusing("a cloud account (/api/signout)"), body="whole"),
    Route("DELETE", "/api/user/keys/*", _refusing("a cloud account (/api/user/keys)")),
    Route("POST", "/api/experimental/web_search", _refusing("web search"), body="whole"),
    Route("POST", "/api/experimental/web_fetch", _refusing("web fetch"), body="whole"),
)

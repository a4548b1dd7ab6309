"""Native routes about the server itself, and the answers where Ollama's own cloud would answer."""

from __future__ import annotations

from ftman.errors import FtmanError
from ftman.gateway.errors import to_json
from ftman.gateway.routes import Call, Handler, Reply, Route

API_VERSION = "0.33.0"
"""Release of Ollama whose local routes are all served; clients compare features with it."""


RUNNING = b"Ollama is running"
_WELCOME = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>ft</title>
<p>%b</p>
<p>This is ft. Its web console is at <a href="/ui">/ui</a>.</p>
</html>
"""


async def root(call: Call) -> Reply:
    """GET /: the text that health checks look for; a browser is told where the console is."""
    vary = (("vary", "Accept"),)
    if "text/html" in call.headers.get("accept", ""):
        page = _WELCOME % RUNNING
        return Reply(page, media_type="text/html; charset=utf-8", headers=vary)
    return Reply(RUNNING, media_type="text/plain; charset=utf-8", headers=vary)


async def version(call: Call) -> Reply:
    """GET /api/version."""
    return Reply(to_json({"version": API_VERSION}))


async def status(call: Call) -> Reply:
    """GET /api/status: there is no cloud behind this server."""
    return Reply(to_json({"cloud": {"disabled": True, "source": "config"}}))


async def recommendations(call: Call) -> Reply:
    """GET /api/experimental/model-recommendations."""
    return Reply(to_json({"recommendations": []}))


def _answering(status_code: int, text: str) -> Handler:
    async def answer(call: Call) -> Reply:
        raise FtmanError(text, status=status_code, code="no_cloud")

    return answer


_no_account = _answering(503, "account unavailable")
_not_signed_in = _answering(401, "you are not currently signed in")
_no_search = _answering(403, "ollama cloud is disabled: web search is unavailable")
_no_fetch = _answering(403, "ollama cloud is disabled: web fetch is unavailable")

ROUTES = (
    Route("GET", "/", root),
    Route("HEAD", "/", root),
    Route("GET", "/api/version", version),
    Route("HEAD", "/api/version", version),
    Route("GET", "/api/status", status),
    Route("GET", "/api/experimental/model-recommendations", recommendations),
    Route("POST", "/api/me", _no_account),
    Route("POST", "/api/signout", _not_signed_in),
    Route("DELETE", "/api/user/keys/*", _not_signed_in),
    Route("POST", "/api/experimental/web_search", _no_search, body="whole"),
    Route("POST", "/api/experimental/web_fetch", _no_fetch, body="whole"),
)

"""Host, Origin and key rules, and that no route escapes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from ftman.errors import ForbiddenError, UnauthorizedError, UsageError
from ftman.gateway.access import AccessRules, rules_for
from ftman.gateway.app import ROUTES, Gateway
from ftman.gateway.rights import right_of
from ftman.keys import MANAGE, USE, KeyRing, create_key, key_of, remove_key
from tests.ftman.gateway.scripted import ScriptedService
from tests.ftman.gateway.serving import Manager

LOCAL = AccessRules(hostname="Box")
RING = KeyRing(given=[key_of("boss", "boss"), key_of("guest", "guest", USE)])

# What every route asks for. A route without a row here fails: think before adding one.
PUBLIC_ROUTES = """
GET / | HEAD / | GET /health | HEAD /health | GET /ui | HEAD /ui | GET /ui/* | HEAD /ui/*
"""
USE_ROUTES = """
GET /api/version | HEAD /api/version | GET /api/status | GET /api/tags | HEAD /api/tags
GET /api/ps | POST /api/show | POST /api/generate | POST /api/chat | POST /api/embed
POST /api/embeddings | POST /api/me | GET /api/experimental/model-recommendations
POST /api/experimental/web_search | POST /api/experimental/web_fetch
GET /api/hello | HEAD /api/hello | GET /v1/health | HEAD /v1/health
GET /openapi.json | GET /metrics
GET /api/ft/status | GET /api/ft/search | GET /api/ft/experts | GET /api/ft/queue
GET /api/ft/watch | GET /api/ft/health
"""
USE_IN_DIALECTS = """
POST /chat/completions | POST /completions | POST /embeddings | POST /audio/transcriptions
POST /responses | POST /responses/input_tokens | POST /responses/* | GET /responses/*
DELETE /responses/* | GET /models | GET /models/* | POST /messages | POST /messages/count_tokens
POST /tokenize | POST /detokenize | GET /tokenizer_info
"""
MANAGE_ROUTES = """
POST /api/copy | DELETE /api/delete | POST /api/create | POST /api/pull | POST /api/push
HEAD /api/blobs/* | POST /api/blobs/* | POST /api/signout | DELETE /api/user/keys/*
GET /api/ft/jobs | POST /api/ft/jobs/* | DELETE /api/ft/jobs/* | POST /api/ft/calibrate
POST /api/ft/bench | POST /api/ft/memory | POST /api/ft/fit | POST /api/ft/plan
POST /api/ft/verify
GET /api/ft/gc | POST /api/ft/gc | POST /api/ft/import | POST /api/ft/shutdown
GET /api/ft/logs | GET /api/ft/logs/*
"""


def rows(text: str) -> list[tuple[str, str]]:
    cells = text.replace("\n", "|").split("|")
    return [cast("tuple[str, str]", tuple(cell.split())) for cell in cells if cell.strip()]


def matrix() -> dict[tuple[str, str], str]:
    found = dict.fromkeys(rows(PUBLIC_ROUTES), "")
    found |= dict.fromkeys(rows(USE_ROUTES), USE)
    for method, path in rows(USE_IN_DIALECTS):
        found |= {(method, path): USE, (method, f"/v1{path}"): USE}
    return found | dict.fromkeys(rows(MANAGE_ROUTES), MANAGE)


def ask(
    rules: AccessRules, method: str, path: str, headers: dict[str, str] | None = None
) -> httpx.Response:
    """One request to a gateway that answers nothing but what access rules decide."""
    gateway = Gateway(cast(Any, ScriptedService()), rules)

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=cast(Any, gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", None),
        ("localhost:11434", None),
        ("127.0.0.1:80", None),
        ("[::1]:11434", None),
        ("192.168.0.2", None),
        ("0.0.0.0", None),
        ("box.local", None),
        ("a.internal", None),
        ("BOX", None),
        ("", None),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("8.8.8.8", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_host_guards_against_rebinding(host: str, status: int | None) -> None:
    reply = LOCAL.refuse("GET", {"host": host})
    assert (reply.status if reply else None) == status
    assert reply is None or reply.body == b""


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://0.0.0.0:1", True),
        ("app://x", True),
        ("tauri://localhost", True),
        ("vscode-webview://abc", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://localhost:3000.evil.example", False),
        ("chrome-extension://abc", False),
        ("null", False),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
def test_origins(origin: str, allowed: bool, method: str) -> None:
    reply = LOCAL.refuse(method, {"host": "localhost", "origin": origin})
    if not allowed:
        assert reply is not None
        assert (reply.status, reply.body) == (403, b"")
    elif method == "OPTIONS":
        assert reply is not None
        assert reply.status == 204
        assert dict(reply.headers)["access-control-max-age"] == "43200"
        assert "x-stainless-arch" in dict(reply.headers)["access-control-allow-headers"]
    else:
        assert reply is None


def test_a_preflight_allows_the_headers_it_names() -> None:
    asked = "anthropic-dangerous-direct-browser-access,x-new-1"
    headers = {"host": "localhost", "origin": "app://x", "access-control-request-headers": asked}
    reply = LOCAL.refuse("OPTIONS", headers)
    assert reply is not None
    assert dict(reply.headers)["access-control-allow-headers"].endswith("," + asked)
    reply = LOCAL.refuse("OPTIONS", headers | {"access-control-request-headers": "a\r\nb: c"})
    assert reply is not None
    assert "b: c" not in dict(reply.headers)["access-control-allow-headers"]


@pytest.mark.parametrize(
    ("origin", "status", "allowed"),
    [("http://localhost:3000", 204, ["http://localhost:3000"]), ("https://evil.example", 403, [])],
)
def test_a_preflight_names_its_origin_once_and_a_refusal_never(
    manager: Manager, origin: str, status: int, allowed: list[str]
) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST"}
    reply = manager.http.options("/v1/chat/completions", headers=asked)
    assert reply.status_code == status
    # A browser refuses a header that names its origin twice.
    assert reply.headers.get_list("access-control-allow-origin") == allowed


def test_same_host_is_no_cross_origin_request() -> None:
    headers = {"host": "a.internal:5", "origin": "http://a.internal:5"}
    assert LOCAL.refuse("GET", headers) is None
    assert LOCAL.cors_headers(headers) == ()


def test_listed_origins_and_the_lone_star() -> None:
    rules = AccessRules(("https://*.example.com", "moz-extension://*"))
    assert rules.origin_allowed("https://a.example.com")
    assert rules.origin_allowed("moz-extension://id")
    assert not rules.origin_allowed("https://example.com")
    star = AccessRules(("*",))
    headers = {"host": "localhost", "origin": "https://any.example"}
    assert star.cors_headers(headers) == (("access-control-allow-origin", "*"),)


@pytest.mark.parametrize("pattern", ["https://*.*", "ftp://x", "example.com"])
def test_bad_origin_patterns_are_refused_at_start(pattern: str) -> None:
    with pytest.raises(UsageError):
        AccessRules((pattern,))


def test_open_bind_needs_a_key_or_insistence() -> None:
    none = KeyRing()
    with pytest.raises(UsageError) as caught:
        rules_for("0.0.0.0", (), none, insecure_no_key=False)
    assert "--insecure-no-key" in caught.value.hint
    assert "ft key create" in caught.value.hint
    assert not rules_for("0.0.0.0", (), none, insecure_no_key=True).loopback
    assert rules_for("192.168.1.5", (), RING, insecure_no_key=False).keys is RING
    assert rules_for("::1", (), none, insecure_no_key=False).loopback


def test_an_open_bind_guards_against_rebinding_too() -> None:
    rules = rules_for("192.168.1.5", (), RING, insecure_no_key=False, hosts=("ft.example",))
    for host in ("192.168.1.5:11434", "8.8.8.8", "ft.example", "localhost", "FT.example:1"):
        assert rules.refuse("GET", {"host": host}) is None
    refused = rules.refuse("GET", {"host": "evil.example"})
    assert refused is not None
    assert refused.status == 403


def test_an_open_bind_stays_shut_when_its_last_key_goes(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, "only", MANAGE)
    rules = rules_for("0.0.0.0", (), KeyRing(path), insecure_no_key=False)
    assert rules.admit(MANAGE, {"x-api-key": secret}) is not None
    remove_key(path, "only")
    for headers in ({}, {"x-api-key": secret}):
        with pytest.raises(UnauthorizedError):
            rules.admit(USE, headers)
    on_loopback = rules_for("127.0.0.1", (), KeyRing(path), insecure_no_key=False)
    assert on_loopback.admit(MANAGE, {}) is None


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    routes = {(route.method, route.path) for route in ROUTES}
    assert routes == set(matrix())


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_every_route_asks_for_its_right(route: Any) -> None:
    rules, right = AccessRules(keys=RING), matrix()[route.method, route.path]
    assert right_of(route.path) == right
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": ""}):
        if right:
            with pytest.raises(UnauthorizedError):
                rules.admit(right, headers)
        else:
            assert rules.admit(right, headers) is None
    for headers in ({"authorization": "Bearer boss"}, {"x-api-key": "boss"}):
        assert rules.admit(right, headers) == key_of("boss", "boss")
    if right == MANAGE:
        with pytest.raises(ForbiddenError):
            rules.admit(right, {"x-api-key": "guest"})
    else:
        assert rules.admit(right, {"x-api-key": "guest"}) is not None


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_no_route_escapes_host_origin_and_key(route: Any) -> None:
    path = route.path.replace("*", "x")
    keyed = AccessRules(keys=RING)
    boss = {"authorization": "Bearer boss"}
    rebound = ask(keyed, route.method, path, {**boss, "host": "evil.example"})
    foreign = ask(keyed, route.method, path, {**boss, "origin": "https://evil.example"})
    assert [(r.status_code, r.content) for r in (rebound, foreign)] == [(403, b"")] * 2
    right = matrix()[route.method, route.path]
    if right:
        assert ask(keyed, route.method, path).status_code == 401
    if right == MANAGE:
        refused = ask(keyed, route.method, path, {"x-api-key": "guest"})
        assert refused.status_code == 403
        assert route.method == "HEAD" or "forbidden" in refused.text
    wrong = ask(keyed, "PATCH", path, boss)
    assert wrong.status_code == 405
    assert route.method in wrong.headers["allow"]


def test_unknown_paths_ask_for_a_key_before_they_are_unknown() -> None:
    keyed = AccessRules(keys=RING)
    assert ask(keyed, "GET", "/nowhere").status_code == 401
    assert ask(keyed, "GET", "/nowhere", {"x-api-key": "guest"}).status_code == 404


def test_accepted_key_is_told_and_no_other() -> None:
    rules = AccessRules(keys=RING, own=(key_of("mine", "command line"),))
    assert rules.key_given({"authorization": "Bearer guest"}) == key_of("guest", "guest", USE)
    assert rules.key_given({"x-api-key": "mine"}) == key_of("mine", "command line")
    assert rules.key_given({"authorization": "Bearer three"}) is None
    assert AccessRules().key_given({"authorization": "Bearer ollama"}) is None

"""Host, Origin and key rules, and that no route escapes them."""

from __future__ import annotations

import pytest

from ftman.errors import UsageError
from ftman.gateway.access import AccessRules, UnauthorizedError, rules_for
from ftman.gateway.app import ROUTES

LOCAL = AccessRules(hostname="Box")


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
    reply = LOCAL.refuse("GET", "/", {"host": host})
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
    reply = LOCAL.refuse(method, "/api/tags", {"host": "localhost", "origin": origin})
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


def test_same_host_is_no_cross_origin_request() -> None:
    headers = {"host": "a.internal:5", "origin": "http://a.internal:5"}
    assert LOCAL.refuse("GET", "/", headers) is None
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
    with pytest.raises(UsageError) as caught:
        rules_for("0.0.0.0", (), (), insecure_no_key=False)
    assert "--insecure-no-key" in caught.value.hint
    assert rules_for("0.0.0.0", (), (), insecure_no_key=True).loopback is False
    assert rules_for("192.168.1.5", (), ("k",), insecure_no_key=False).keys == ("k",)
    assert rules_for("::1", (), (), insecure_no_key=False).loopback is True


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_every_route_asks_for_the_key_but_the_public_ones(route: object) -> None:
    rules = AccessRules(keys=("secret",))
    method, path = route.method, route.path  # type: ignore[attr-defined]
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": ""}):
        if path in ("/", "/health"):
            assert rules.refuse(method, path, headers) is None
        else:
            with pytest.raises(UnauthorizedError):
                rules.refuse(method, path, headers)
    for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
        assert rules.refuse(method, path, headers) is None


def test_accepted_key_is_told_and_no_other() -> None:
    rules = AccessRules(keys=("one", "two"))
    assert rules.key_given({"authorization": "Bearer two"}) == "two"
    assert rules.key_given({"x-api-key": "one"}) == "one"
    assert rules.key_given({"authorization": "Bearer three"}) == ""
    assert AccessRules().key_given({"authorization": "Bearer ollama"}) == ""

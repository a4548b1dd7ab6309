"""Who may speak to the manager: Host and Origin rules, CORS, API keys.

Decided before any route runs; a refusal has an empty body, as Ollama's has.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ftman.errors import FtmanError, UsageError
from ftman.gateway.routes import Reply

_LOCAL_NAMES = ("localhost", "127.0.0.1", "0.0.0.0")
_APP_SCHEMES = ("app", "file", "tauri", "vscode-webview", "vscode-file")
_ORIGIN_SCHEMES = (
    "http://",
    "https://",
    "chrome-extension://",
    "safari-extension://",
    "moz-extension://",
    "ms-browser-extension://",
)
_METHODS = "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"
_STAINLESS = (
    *("arch", "async", "custom-poll-interval", "helper-method", "lang", "os", "package-version"),
    *("poll-helper", "retry-count", "runtime", "runtime-version", "timeout"),
)
_HEADERS = ",".join(
    (
        *("Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With"),
        *("OpenAI-Beta", "x-api-key", "anthropic-version", "anthropic-beta"),
        *(f"x-stainless-{name}" for name in _STAINLESS),
    )
)
_PUBLIC = ("/health", "/")


class UnauthorizedError(FtmanError):
    """No API key, or a wrong one."""

    code = "invalid_api_key"
    status = 401


@dataclass(frozen=True)
class AccessRules:
    """The rules of one server.

    origins: extra allowed origins, each with at most one `*`. loopback: the bind is loopback, so
    the Host header is checked. keys: accepted API keys; empty = none is asked for.
    """

    origins: tuple[str, ...] = ()
    loopback: bool = True
    keys: tuple[str, ...] = ()
    hostname: str = ""

    def __post_init__(self) -> None:
        for pattern in self.origins:
            _check_origin(pattern)

    def refuse(self, method: str, path: str, headers: Mapping[str, str]) -> Reply | None:
        """The reply that ends this request here, or None to go on.   Raises: UnauthorizedError."""
        host = _bare_host(headers.get("host", ""))
        if self.loopback and not self.host_allowed(host):
            return _empty(403)
        origin = headers.get("origin", "")
        if origin and not _same_host(origin, headers.get("host", "")):
            if not self.origin_allowed(origin):
                return _empty(403)
            if method == "OPTIONS":
                return _preflight(self.cors_headers(headers))
        if method == "OPTIONS":
            return _empty(204)
        if self.keys and path not in _PUBLIC and not self.key_given(headers):
            raise UnauthorizedError(
                "API key missing or wrong",
                hint="Send the key as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            )
        return None

    def cors_headers(self, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Headers that let an allowed page on another origin read the reply."""
        origin = headers.get("origin", "")
        if not origin or _same_host(origin, headers.get("host", "")):
            return ()
        if "*" in self.origins:
            return (("access-control-allow-origin", "*"),)
        return (("access-control-allow-origin", origin), ("vary", "Origin"))

    def host_allowed(self, host: str) -> bool:
        """True for this machine's names and for addresses that cannot be rebound."""
        if host in ("", "localhost", self.hostname.lower()):
            return True
        if host.endswith((".localhost", ".local", ".internal")):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or address.is_private or address.is_unspecified

    def origin_allowed(self, origin: str) -> bool:
        """True if the origin is a local page, a desktop app, or listed."""
        scheme, separator, rest = origin.partition("://")
        if not separator:
            return "*" in self.origins
        if scheme in _APP_SCHEMES:
            return True
        name, _, port = rest.partition(":")
        if scheme in ("http", "https") and name in _LOCAL_NAMES and (port.isdigit() or not port):
            return True
        return any(_matches(pattern, origin) for pattern in self.origins)

    def key_given(self, headers: Mapping[str, str]) -> str:
        """The accepted key that a request brings, "" for none."""
        for name in ("authorization", "x-api-key"):
            given = headers.get(name, "")
            if given[:7].lower() == "bearer ":
                given = given[7:]
            data = given.strip().encode("utf-8", "replace")
            # Every key is compared, so that the time taken says nothing.
            found = [key for key in self.keys if hmac.compare_digest(data, key.encode())]
            if found:
                return found[0]
        return ""


def rules_for(
    host: str, origins: tuple[str, ...], keys: tuple[str, ...], *, insecure_no_key: bool
) -> AccessRules:
    """Rules for a bind address.   Raises: UsageError for an open bind without an API key."""
    loopback = is_loopback(host)
    if not loopback and not keys and not insecure_no_key:
        raise UsageError(
            f"refusing to listen on {host} without an API key: anyone who reaches this machine "
            "could use and change your models",
            hint="Listen on 127.0.0.1, set an API key, or insist with --insecure-no-key.",
            code="open_bind",
        )
    return AccessRules(origins, loopback, keys, socket.gethostname())


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_origin(pattern: str) -> None:
    if pattern == "*":
        return
    if pattern.count("*") > 1:
        raise UsageError(f"origin {pattern!r} holds more than one '*'", code="bad_setting")
    if "*" not in pattern and not pattern.startswith(_ORIGIN_SCHEMES):
        raise UsageError(
            f"origin {pattern!r} must start with http://, https:// or a browser-extension scheme",
            hint="Change FT_ORIGINS or origins in config.toml.",
            code="bad_setting",
        )


def _matches(pattern: str, origin: str) -> bool:
    if "*" not in pattern:
        return pattern == origin
    before, _, after = pattern.partition("*")
    long_enough = len(origin) >= len(before) + len(after)
    return long_enough and origin.startswith(before) and origin.endswith(after)


def _bare_host(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return re.sub(r":\d*$", "", host)


def _same_host(origin: str, host: str) -> bool:
    return bool(host) and origin in (f"http://{host}", f"https://{host}")


def _empty(status: int) -> Reply:
    return Reply(b"", status, "")


def _preflight(cors: tuple[tuple[str, str], ...]) -> Reply:
    return Reply(
        b"",
        204,
        "",
        (
            *cors,
            ("access-control-allow-methods", _METHODS),
            ("access-control-allow-headers", _HEADERS),
            ("access-control-max-age", "43200"),
        ),
    )

"""Who may speak to the manager: Host and Origin rules, CORS, API keys.

Decided before any route runs; a refusal has an empty body, as Ollama's has. Which right a route
asks for stands in rights.py.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftman.errors import ForbiddenError, UnauthorizedError, UsageError
from ftman.gateway.rights import PUBLIC
from ftman.gateway.routes import Reply
from ftman.keys import MANAGE, ApiKey, KeyRing

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
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
PRIORITY_HEADER = "X-Ft-Priority"
_HEADERS = ",".join(
    (
        *("Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With"),
        *("OpenAI-Beta", "x-api-key", "anthropic-version", "anthropic-beta", PRIORITY_HEADER),
        *(f"x-stainless-{name}" for name in _STAINLESS),
    )
)


@dataclass(frozen=True)
class AccessRules:
    """The rules of one server.

    origins: extra allowed origins, each with at most one `*`. loopback: only this machine reaches
    the server. keys: accepted API keys; with none of them, none is asked for, unless `closed`: what
    others reach stays shut when its last key goes. own: keys of our own command line. hosts: names
    that the Host header may hold beside the machine's.
    """

    origins: tuple[str, ...] = ()
    loopback: bool = True
    keys: KeyRing = field(default_factory=KeyRing)
    hostname: str = ""
    hosts: tuple[str, ...] = ()
    closed: bool = False
    own: tuple[ApiKey, ...] = ()

    def __post_init__(self) -> None:
        for pattern in self.origins:
            _check_origin(pattern)

    def refuse(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """The reply that ends this request here, whatever its route; None to go on."""
        if not self.host_allowed(_bare_host(headers.get("host", ""))):
            return _empty(403)
        origin = headers.get("origin", "")
        if origin and not _same_host(origin, headers.get("host", "")):
            if not self.origin_allowed(origin):
                return _empty(403)
            if method == "OPTIONS":
                return _preflight(headers.get("access-control-request-headers", ""))
        if method == "OPTIONS":
            return _empty(204)
        return None

    def admit(self, right: str, headers: Mapping[str, str]) -> ApiKey | None:
        """The key of a request that may do what asks for `right`; None where no key is asked for.

        Raises: UnauthorizedError, ForbiddenError.
        """
        key = self.key_given(headers)
        if right == PUBLIC or not (self.closed or self.keys.asks):
            return key
        if key is None:
            raise UnauthorizedError(
                "API key missing or wrong",
                hint="Send the key as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            )
        if right == MANAGE and not key.manages:
            raise ForbiddenError(
                f"the API key {key.name} may use models, not manage them",
                hint="A key that may: ft key create NAME --rights manage",
            )
        return key

    def cors_headers(self, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Headers that let an allowed page on another origin read the reply, whatever it is."""
        origin = headers.get("origin", "")
        if not origin or _same_host(origin, headers.get("host", "")):
            return ()
        if not self.origin_allowed(origin):
            return ()
        if "*" in self.origins:
            return (("access-control-allow-origin", "*"),)
        return (("access-control-allow-origin", origin), ("vary", "Origin"))

    def host_allowed(self, host: str) -> bool:
        """True for this machine's names and for addresses, which cannot be rebound."""
        if host in ("", "localhost", self.hostname.lower(), *(name.lower() for name in self.hosts)):
            return True
        if host.endswith((".localhost", ".local", ".internal")):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if not self.loopback:
            return True  # a public address of this machine's, which it cannot tell
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

    def key_given(self, headers: Mapping[str, str]) -> ApiKey | None:
        """The accepted key that a request brings."""
        for name in ("authorization", "x-api-key"):
            given = headers.get(name, "")
            if given[:7].lower() == "bearer ":
                given = given[7:]
            found = self.keys.find(given.strip(), self.own) if given.strip() else None
            if found is not None:
                return found
        return None


def rules_for(
    host: str,
    origins: tuple[str, ...],
    keys: KeyRing,
    *,
    insecure_no_key: bool,
    hosts: tuple[str, ...] = (),
    own: tuple[ApiKey, ...] = (),
) -> AccessRules:
    """Rules for a bind address.   Raises: UsageError for an open bind without an API key."""
    loopback = is_loopback(host)
    if not loopback and not keys.asks and not insecure_no_key:
        raise UsageError(
            f"refusing to listen on {host} without an API key: anyone who reaches this machine "
            "could use and change your models",
            hint="Make a key first: ft key create NAME\n"
            "or listen on this machine only: FT_HOST=127.0.0.1 ft serve\n"
            "or insist: ft serve --insecure-no-key",
            code="open_bind",
        )
    named = hosts if loopback else (host, *hosts)
    closed = not loopback and not insecure_no_key
    return AccessRules(origins, loopback, keys, socket.gethostname(), named, closed, own)


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


def _preflight(asked: str) -> Reply:
    """Everything but the CORS headers that every reply gets. asked: the headers to be allowed."""
    # Which origins may speak is decided; new SDKs for browsers send headers that no list knows.
    more = f",{asked}" if _HEADER_NAMES.fullmatch(asked) else ""
    return Reply(
        b"",
        204,
        "",
        (
            ("access-control-allow-methods", _METHODS),
            ("access-control-allow-headers", _HEADERS + more),
            ("access-control-max-age", "43200"),
        ),
    )

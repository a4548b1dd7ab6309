"""HTTP client of the manager: requests, NDJSON streams, and errors turned back into FtmanError.

Which server to talk to is decided in manager.py. httpx is loaded here and nowhere else in cli,
so that help and version stay quick: import this module only inside a verb.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from ftman import __version__
from ftman.errors import (
    BusyError,
    CannotFitError,
    ConflictError,
    EngineDiedError,
    FtmanError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 60.0
SERVER_PREFIX = "ft/"
UPSTREAM_MISSING = "file does not exist"

_BY_STATUS: dict[int, type[FtmanError]] = {
    400: UsageError,
    404: NotFoundError,
    409: ConflictError,
    502: NetworkError,
    503: BusyError,
    504: NetworkError,
    507: CannotFitError,
}
_KINDS: tuple[type[FtmanError], ...] = (
    UsageError,
    NotFoundError,
    ConflictError,
    CannotFitError,
    NetworkError,
    IntegrityError,
    UnsupportedError,
    BusyError,
    EngineDiedError,
)
_BY_CODE = {kind.code: kind for kind in _KINDS} | {"model_not_found": NotFoundError}


class ManagerClient:
    """One connection to one manager. Use as a context manager."""

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None):
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            timeout=httpx.Timeout(REPLY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            headers={"User-Agent": f"ft/{__version__}"},
            # A proxy is for other machines; it must never see, or break, talk with our own.
            trust_env=not is_local(url),
            transport=transport,
        )

    def __enter__(self) -> ManagerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection; a stream that still runs is aborted."""
        self._http.close()

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """GET a JSON object.   Raises: FtmanError."""
        return self._ask("GET", path, params=dict(params or {}))

    def post(self, path: str, body: Mapping[str, Any], *, patient: bool = False) -> dict[str, Any]:
        """POST a JSON object, get one back ({} for an empty reply). patient: no time limit."""
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S) if patient else None
        return self._ask("POST", path, json=dict(body), **({"timeout": timeout} if timeout else {}))

    def delete(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """DELETE with a JSON body."""
        return self._ask("DELETE", path, json=dict(body))

    def upload(self, path: str, chunks: Iterable[bytes], size: int) -> int:
        """POST raw bytes; returns the status (201 new, 200 already there)."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        try:
            reply = self._http.post(path, content=chunks, headers=headers, timeout=None)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if reply.status_code >= 400:
            raise error_of(reply.status_code, reply.content)
        return reply.status_code

    def exists(self, path: str) -> bool:
        """HEAD: True for 200."""
        try:
            return self._http.head(path).status_code == 200
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """POST and yield the NDJSON objects; closing the iterator aborts the request.

        Raises: FtmanError for an error status, an error line, or a connection that breaks.
        """
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        try:
            with self._http.stream("POST", path, json=dict(body), timeout=timeout) as reply:
                if reply.status_code >= 400:
                    raise error_of(reply.status_code, reply.read())
                for line in _ndjson_lines(reply.iter_bytes()):
                    item = _object(line)
                    if "error" in item:
                        raise _error_from(item, 0)
                    yield item
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            reply = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if reply.status_code >= 400:
            raise error_of(reply.status_code, reply.content)
        return _object(reply.content) if reply.content.strip() else {}

    def _unreachable(self, error: httpx.HTTPError) -> FtmanError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return NetworkError(f"no ft manager answers at {self.url}", hint="Start it: ft serve")
        if isinstance(error, httpx.TimeoutException):
            return NetworkError(
                f"the manager at {self.url} did not answer in {REPLY_TIMEOUT_S:.0f} s",
                hint="Look at: ft logs",
            )
        return NetworkError(
            f"the manager at {self.url} ended the connection before the answer was complete",
            hint="Look at: ft logs",
            code="stream_ended",
        )


def probe(url: str) -> str:
    """Who answers there: "ft", "ollama", "other" or "" (nobody). Asks only GET /."""
    try:
        with (
            httpx.Client(timeout=CONNECT_TIMEOUT_S, trust_env=not is_local(url)) as http,
            http.stream("GET", f"{url}/") as reply,
        ):
            if reply.headers.get("server", "").startswith(SERVER_PREFIX):
                return "ft"
            head = next(reply.iter_bytes(64), b"")
            return "ollama" if head.startswith(b"Ollama is running") else "other"
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return ""
    except (httpx.HTTPError, httpx.InvalidURL):
        return "other"


def is_local(url: str) -> bool:
    """True for a loopback address."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def error_of(status: int, body: bytes) -> FtmanError:
    """The error that a failed reply tells of."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict) or "error" not in value:
        text = body[:200].decode("utf-8", "replace").strip() or "no reason given"
        value = {"error": f"the manager answered {status}: {text}"}
    return _error_from(value, status)


def _error_from(value: Mapping[str, Any], status: int) -> FtmanError:
    told = value["error"]
    if isinstance(told, dict):
        told = told.get("message", told)
    code, hint = str(value.get("code") or ""), str(value.get("hint") or "")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or FtmanError
    if UPSTREAM_MISSING in str(told) or (kind is FtmanError and str(told).endswith("not found")):
        kind = NotFoundError
    if kind is NotFoundError and not hint:
        hint = "What is installed: ft list. To get more: ft pull NAME"
    return kind(str(told), hint=hint, code=code, status=status)


def _ndjson_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines by \\n alone: JSON may hold U+2028, which text splitting would cut at."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        shown = data[:80].decode("utf-8", "replace")
        raise FtmanError(f"the manager's answer is not a JSON object: {shown!r}")
    return value

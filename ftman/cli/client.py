"""HTTP client of the manager: requests, NDJSON streams, and errors turned back into FtmanError.

Which server to talk to is decided in manager.py. httpx is loaded here and nowhere else in cli,
so that help and version stay quick: import this module only inside a verb.
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
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
    ForbiddenError,
    FtmanError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    UnauthorizedError,
    UnsupportedError,
    UsageError,
)
from ftman.names import NAME_HINT, near_names

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 60.0
SERVER_PREFIX = "ft/"
NAMES_SHOWN = 3
DID_YOU_MEAN = "Did you mean"
NO_MANAGER = "no_manager"
UPSTREAM_MISSING = "file does not exist"

_BY_STATUS: dict[int, type[FtmanError]] = {
    400: UsageError,
    401: UnauthorizedError,
    403: ForbiddenError,
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
    UnauthorizedError,
    ForbiddenError,
)
# Codes that a stream tells without a status.
_BY_CODE = {kind.code: kind for kind in _KINDS} | {
    "model_not_found": NotFoundError,
    "disk_full": CannotFitError,
    "gated": NetworkError,
    "insecure": UsageError,
}
_NO_MODEL = re.compile(r"model ['\"](.+)['\"] not found")
_BAD_NAME = "invalid model name"


class ManagerClient:
    """One connection to one manager. Use as a context manager.

    key: the API key to show. certificate: the manager's own, which is then the only one believed.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        certificate: Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ):
        self.url = url
        self._key, self._certificate, self._transport = key, certificate, transport
        headers = {"User-Agent": f"ft/{__version__}"}
        self._http = httpx.Client(
            base_url=url,
            timeout=httpx.Timeout(REPLY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            headers=headers | ({"Authorization": f"Bearer {key}"} if key else {}),
            # A proxy is for other machines; it must never see, or break, talk with our own.
            trust_env=not is_local(url),
            verify=_believing(url, certificate),
            transport=transport,
        )

    def twin(self) -> ManagerClient:
        """A second connection to the same manager, for use beside this one."""
        return ManagerClient(
            self.url, key=self._key, certificate=self._certificate, transport=self._transport
        )

    def answers(self) -> bool:
        """Whether a manager of ours still listens there."""
        return probe(self.url, self._certificate) == "ft"

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
        except httpx.InvalidURL as error:
            raise UsageError(f"that cannot be asked: {error}", hint="Use fewer words.") from None
        if reply.status_code >= 400:
            raise self._with_near_names(error_of(reply.status_code, reply.content))
        return _object(reply.content) if reply.content.strip() else {}

    def _with_near_names(self, error: FtmanError) -> FtmanError:
        """A missing model's error names the installed ones that may have been meant."""
        missing = _NO_MODEL.fullmatch(error.message)
        if missing is None:
            return error
        try:
            models = _object(self._http.get("/api/tags").content).get("models") or []
        except (httpx.HTTPError, FtmanError):
            return error
        stems = {str(model["name"]): str(model["name"]).partition(":")[0] for model in models}
        close = near_names(missing[1].partition(":")[0], stems.values())
        meant = [name for name, stem in stems.items() if stem in close][:NAMES_SHOWN]
        if meant:
            error.hint = f"{DID_YOU_MEAN} {' or '.join(meant)}? What is installed: ft list"
        return error

    def text_lines(self, path: str, params: Mapping[str, str]) -> Iterator[str]:
        """GET text and yield what comes, as it comes.   Raises: FtmanError."""
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        try:
            with self._http.stream("GET", path, params=dict(params), timeout=timeout) as reply:
                if reply.status_code >= 400:
                    raise error_of(reply.status_code, reply.read())
                yield from reply.iter_text()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx.HTTPError) -> FtmanError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return NetworkError(
                f"the certificate of {self.url} is not believed: {error}",
                hint="Name the authority that signed it: SSL_CERT_FILE=ca.pem ft ...",
                code="certificate",
            )
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return NetworkError(
                f"no ft manager answers at {self.url}", hint="Start it: ft serve", code=NO_MANAGER
            )
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


def probe(url: str, certificate: Path | None = None) -> str:
    """Who answers there: "ft", "ollama", "other" or "" (nobody). Asks only GET /."""
    try:
        with (
            httpx.Client(
                timeout=CONNECT_TIMEOUT_S,
                trust_env=not is_local(url),
                verify=_believing(url, certificate),
            ) as http,
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


def _believing(url: str, certificate: Path | None) -> ssl.SSLContext | bool:
    """What is believed of a server: the usual authorities, or one certificate and nothing else.

    Without https nobody is: reading the authorities takes longer than most answers.

    A certificate of one's own names the machine as others see it, not 127.0.0.1, so the name is
    not compared: the file itself is the proof.   Raises: NetworkError.
    """
    if is_local(url) and url.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if certificate is None:
        return True
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except (OSError, ssl.SSLError) as error:
        raise NetworkError(
            f"the certificate {certificate} cannot be read: {error}",
            hint="Change FT_TLS_CERT or tls_cert in config.toml.",
        ) from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


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
    if status == 401 or (status == 403 and not hint):  # theirs speaks of headers
        hint = "Show a key: FT_API_KEY=... ft ...; ft key create NAME makes one there."
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or FtmanError
    if UPSTREAM_MISSING in str(told) or (kind is FtmanError and str(told).endswith("not found")):
        kind = NotFoundError
    if not hint and str(told).startswith(_BAD_NAME):
        kind, hint = UsageError, NAME_HINT
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

"""One HTTP GET of a byte range: redirects, secrets, status codes and odd answers, judged here.

Nothing is retried here; a MirrorError says what kind of trouble it is and download.py decides.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import httpx

from ftman.errors import NetworkError
from ftman.names import printable
from ftman.pull.source import Mirror

MAX_REDIRECTS = 5
MAX_RETRY_AFTER_S = 60.0
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_TLS_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
_RETRYABLE = (408, 425, 429)
_EXPIRED = (401, 403, 410)

Trouble = Literal["retry", "aside", "no_ranges", "changed", "expired", "denied"]


class MirrorError(Exception):
    """Why a mirror did not give what was asked.

    trouble: "retry" may pass; "aside" will not; "no_ranges" means whole files only; "changed" means
    the file is another one than before; "expired" asks for a fresh redirect; "denied" is 401/403.
    """

    def __init__(self, trouble: Trouble, message: str, after_s: float = 0.0):
        super().__init__(message)
        self.trouble: Trouble = trouble
        self.message = message
        self.after_s = after_s


@dataclass(frozen=True)
class Timeouts:
    """Units: seconds. read is the stall timer: no byte for that long ends the request."""

    connect_s: float = 15.0
    read_s: float = 30.0


@dataclass(frozen=True)
class Probe:
    """What a mirror says about a file. total None = it does not say."""

    total: int | None
    etag: str
    ranges: bool


@dataclass(frozen=True)
class Body:
    """A checked answer, positioned at `start`. total is the size of the whole file there."""

    response: httpx.Response
    start: int
    total: int | None
    etag: str


@dataclass
class Transport:
    """An HTTP client for downloads. Remembers where each URL's redirect led."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    user_agent: str = "ft"
    _client: httpx.AsyncClient | None = None
    _direct: dict[str, str] = field(default_factory=dict)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def probe(self, mirror: Mirror) -> Probe:
        """Ask for one byte to learn size, ETag and whether ranges work.   Raises: MirrorError."""
        async with self.open(mirror, 0, 1, want_total=None) as body:
            partial = body.response.status_code == 206
            return Probe(body.total, body.etag, partial)

    @asynccontextmanager
    async def open(
        self,
        mirror: Mirror,
        start: int,
        end: int | None,
        *,
        want_total: int | None,
        etag: str = "",
        html_ok: bool = False,
    ) -> AsyncIterator[Body]:
        """GET bytes [start, end) (end None: the whole file, no Range).   Raises: MirrorError.

        want_total is the size the file must have; etag, when given, must still be the same.
        """
        headers = {"Accept-Encoding": "identity"}
        if end is not None:
            headers["Range"] = f"bytes={start}-{end - 1}"
            if etag and not etag.startswith("W/"):
                headers["If-Range"] = etag
        response = await self._send(mirror, headers)
        try:
            body = _judge(response, mirror, (start, end), want_total, html_ok)
            if etag and body.etag and body.etag != etag:
                raise MirrorError("changed", f"{_host(mirror.url)} has another file than before")
            yield body
        except httpx.HTTPError as error:
            raise _mapped(error, mirror.url) from error
        finally:
            await response.aclose()

    def forget(self, mirror: Mirror) -> bool:
        """Drop the remembered redirect; True if there was one (a fresh one may help)."""
        return self._direct.pop(mirror.url, None) is not None

    async def _send(self, mirror: Mirror, headers: dict[str, str]) -> httpx.Response:
        url = self._direct.get(mirror.url, mirror.url)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._request(url, headers, mirror)
            if response.status_code not in (301, 302, 303, 307, 308):
                if url != mirror.url:
                    self._direct[mirror.url] = url
                return response
            target = response.headers.get("location", "")
            await response.aclose()
            url = _next_url(url, target)
        raise MirrorError("aside", f"{_host(mirror.url)} redirects in a loop")

    async def _request(self, url: str, headers: dict[str, str], mirror: Mirror) -> httpx.Response:
        sent = dict(headers)
        if mirror.token and _same_place(url, mirror.url):
            sent["Authorization"] = f"Bearer {mirror.token}"
        client = self._ready()
        try:
            request = client.build_request("GET", url, headers=sent)
            return await client.send(request, stream=True, follow_redirects=False)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise _mapped(error, url) from error

    def _ready(self) -> httpx.AsyncClient:
        if self._client is None:
            limit = self.timeouts
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(limit.read_s, connect=limit.connect_s, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
                headers={"User-Agent": self.user_agent},
                mounts=dict.fromkeys(_LOOPBACK),
            )
        return self._client


def _same_place(url: str, home: str) -> bool:
    """True if a secret for `home` may travel to `url`: same scheme, host and port."""
    one, two = urlsplit(url), urlsplit(home)
    return (one.scheme, one.hostname, one.port) == (two.scheme, two.hostname, two.port)


def _next_url(url: str, location: str) -> str:
    if not location:
        raise MirrorError("aside", f"{_host(url)} redirects without saying where")
    try:
        target = str(httpx.URL(url).join(location))
    except (httpx.InvalidURL, ValueError):
        raise MirrorError("aside", f"{_host(url)} redirects to a malformed address") from None
    if urlsplit(target).scheme not in ("http", "https"):
        raise MirrorError("aside", f"{_host(url)} redirects to {printable(target)}")
    return target


def _judge(
    response: httpx.Response,
    mirror: Mirror,
    span: tuple[int, int | None],
    want_total: int | None,
    html_ok: bool,
) -> Body:
    host, status = _host(mirror.url), response.status_code
    if status not in (200, 206):
        raise _status_trouble(response, host, want_total)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") and not html_ok:
        raise MirrorError(
            "aside", f"{host} answers with a web page instead of the file (a login or a proxy?)"
        )
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise MirrorError("aside", f"{host} sends the file compressed ({coding}), unasked")
    etag = response.headers.get("etag", "")
    length = _number(response.headers.get("content-length"))
    if status == 200:
        _check_total(length, want_total, host)
        return Body(response, 0, length, etag)
    return _partial(response, host, span, want_total, etag)


def _partial(
    response: httpx.Response,
    host: str,
    span: tuple[int, int | None],
    want_total: int | None,
    etag: str,
) -> Body:
    start, end = span
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "").strip())
    if end is None or match is None:
        raise MirrorError("aside", f"{host} sends a part without a usable Content-Range")
    first, last, total = (int(group) for group in match.groups())
    _check_total(total, want_total, host)
    if first != start or last != min(end, total) - 1:
        raise MirrorError(
            "aside", f"{host} sends bytes {first}-{last} where {start}-{end - 1} were asked for"
        )
    length = _number(response.headers.get("content-length"))
    if length is not None and length != last - first + 1:
        raise MirrorError("aside", f"{host} announces {length} bytes for {last - first + 1}")
    return Body(response, start, total, etag)


def _check_total(total: int | None, want: int | None, host: str) -> None:
    if want is not None and total is not None and total != want:
        raise MirrorError("changed", f"{host} has {total} bytes where the file has {want}")


def _status_trouble(response: httpx.Response, host: str, want_total: int | None) -> MirrorError:
    status = response.status_code
    reason = f"{host} answers {status} {response.reason_phrase}".rstrip()
    if status == 416:
        size = response.headers.get("content-range", "").rpartition("/")[2]
        other = size.isdigit() and want_total is not None and int(size) != want_total
        return MirrorError("changed" if other else "aside", f"{reason} (its file: {size} bytes)")
    if status in _EXPIRED:
        return MirrorError("expired", reason)
    if status in _RETRYABLE or status >= 500:
        return MirrorError("retry", reason, _retry_after(response))
    return MirrorError("aside", reason)


def _retry_after(response: httpx.Response) -> float:
    number = _number(response.headers.get("retry-after"))
    return min(float(number), MAX_RETRY_AFTER_S) if number is not None else 0.0


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url


def _mapped(error: Exception, url: str) -> MirrorError:
    """One clear line for what the HTTP library reports, by the first cause in the chain."""
    host = _host(url)
    # Waiting for bytes inside of TLS leaves its mark on a time-out, and is no trouble of TLS.
    chain = _chain(error)
    causes = [item for item in chain if not isinstance(item, _TLS_WAITS)]
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = f"TLS certificate of {host} is not accepted: {cause.verify_message}"
            if cause.verify_code in (9, 10):
                text += " (is this machine's clock right?)"
            return MirrorError("aside", text)
        if isinstance(cause, ssl.SSLError):
            return MirrorError("aside", f"TLS with {host} fails: {cause.reason or cause}")
        if isinstance(cause, socket.gaierror):
            return MirrorError("retry", f"host {host} cannot be found (DNS: {cause.strerror})")
    if any("SSL" in str(cause) or "CERTIFICATE" in str(cause) for cause in causes):
        return MirrorError("aside", f"TLS with {host} fails: {causes[-1]}")
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return MirrorError("aside", f"the address {printable(url)} is not usable")
    if isinstance(error, httpx.ConnectTimeout | httpx.ReadTimeout):
        return MirrorError("retry", _silence(error, host, in_tls=len(causes) < len(chain)))
    if isinstance(error, httpx.ConnectError):
        return MirrorError("retry", f"cannot connect to {host}: {causes[-1]}")
    return MirrorError("retry", f"the connection to {host} broke: {error or type(error).__name__}")


def _silence(error: httpx.TimeoutException, host: str, *, in_tls: bool) -> str:
    if in_tls and isinstance(error, httpx.ConnectTimeout):
        return f"TLS with {host} does not begin (timed out; does it speak https?)"
    return f"{host} sends nothing (timed out)"


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    present: BaseException | None = error
    while present is not None and present not in found:
        found.append(present)
        present = present.__cause__ or present.__context__
    return found


def network_error(error: MirrorError, what: str) -> NetworkError:
    """The user's form of a MirrorError that nothing could help."""
    hint = "Run the same command again: it goes on where it stopped."
    if error.trouble in ("expired", "denied"):
        hint = "The publisher may want a login: accept its licence there and set HF_TOKEN."
    elif error.trouble == "aside":
        hint = "That will not pass by itself: check the address and what lies there."
    return NetworkError(f"{what}: {error.message}", hint=hint)

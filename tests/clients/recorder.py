"""A proxy between a client and our manager that writes down what the client really sent.

In tests:

    with Recorder(manager.url) as recorder:
        ...  # the client talks to recorder.url
    assert not recorder.failures()
    save(Recording("pi", "1.6.0", recorder.exchanges), folder)

As a program: `python -m tests.clients.recorder URL` prints its own URL and, at the end of its
standard input, the exchanges. Answers pass through unchanged and as they come. What is kept of a
request is decided in redaction.py; replay.py sends recordings again.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.clients.redaction import Redactor

_HOP = ("connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection")
_HIGHEST_KEPT = 40  # of one client; further requests repeat what is known


@dataclass(frozen=True)
class Exchange:
    """One request as it came, and how it was answered. `body` is JSON, a text or None."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any
    status: int
    kind: str
    answer: str = field(default="", repr=False)


@dataclass(frozen=True)
class Recording:
    """What one version of one client sent."""

    client: str
    version: str
    exchanges: list[Exchange]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up; anything else is a fault of this file."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Recorder:
    """A running proxy; `exchanges` grows in the order in which answers ended."""

    def __init__(self, upstream: str, port: int = 0):
        self.exchanges: list[Exchange] = []
        where = urlsplit(upstream)
        assert where.hostname is not None
        upstream_host, upstream_port = where.hostname, where.port or 80

        class Handler(_Handler):
            recorder = self
            upstream = (upstream_host, upstream_port)

        self._server = _Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def failures(self) -> list[Exchange]:
        """Requests that were answered with a 4xx or 5xx."""
        return [exchange for exchange in self.exchanges if exchange.status >= 400]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    recorder: Recorder
    upstream: tuple[str, int]

    def _forward(self) -> None:
        body = self._body()
        connection = http.client.HTTPConnection(*self.upstream, timeout=300)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        if body is not None:
            headers["Content-Length"] = str(len(body))
        try:
            connection.request(self.command, self.path, body, headers)
            reply = connection.getresponse()
            kind = reply.getheader("content-type") or ""
            answer = self._answer(reply)
        except (OSError, http.client.HTTPException) as error:
            self.close_connection = True
            reply, kind, answer = None, "", f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        status = reply.status if reply is not None else 0
        self.recorder.exchanges.append(
            Exchange(
                self.command, self.path, dict(self.headers), _parsed(body), status, kind, answer
            )
        )

    def _body(self) -> bytes | None:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        length = self.headers.get("content-length")
        return self.rfile.read(int(length)) if length is not None else None

    def _answer(self, reply: http.client.HTTPResponse) -> str:
        self.send_response_only(reply.status, reply.reason)
        chunked = (reply.getheader("transfer-encoding") or "").lower() == "chunked"
        for name, value in reply.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        seen = b""
        while self.command != "HEAD" and (data := reply.read1(1 << 16)):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            self.wfile.flush()
            seen += data
        if chunked and self.command != "HEAD":
            self.wfile.write(b"0\r\n\r\n")
        return seen.decode("utf-8", "replace")

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _forward

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: what passed is in `exchanges`."""


def _parsed(body: bytes | None) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def save(recording: Recording, folder: Path) -> Path:
    """Write a client's requests, redacted, each shape once; returns the file."""
    redactor = Redactor()
    requests: list[dict[str, Any]] = []
    for exchange in recording.exchanges:
        request = {
            "method": exchange.method,
            "target": redactor.value(exchange.target),
            "headers": redactor.headers(exchange.headers),
            "body": redactor.value(exchange.body),
            "status": exchange.status,
            "kind": exchange.kind,
        }
        if request not in requests and exchange.status and len(requests) < _HIGHEST_KEPT:
            requests.append(request)
    path = folder / f"{recording.client}.json"
    folder.mkdir(parents=True, exist_ok=True)
    head = {"client": recording.client, "version": recording.version, "requests": requests}
    path.write_text(json.dumps(head, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def main() -> None:
    """Proxy until standard input ends."""
    with Recorder(sys.argv[1]) as recorder:
        sys.stdout.write(f"{recorder.url}\n")
        sys.stdout.flush()
        sys.stdin.read()
    json.dump([asdict(exchange) for exchange in recorder.exchanges], sys.stdout)


if __name__ == "__main__":
    main()

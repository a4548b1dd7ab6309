"""What public reports tell of other managers' pulls, tried on ours: bars that run back, errors that
stay, proxies and authorities that are not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ftman.errors import FtmanError, NetworkError
from tests.fakes.hub import BadHub
from tests.ftman.pull.conftest import Station, gguf_bytes, options
from tests.ftman.pull.test_download import fetch, file_of

DATA = gguf_bytes(300_000)
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
TLS = Path(__file__).resolve().parents[2] / "data" / "tls"


def test_a_bar_never_runs_back_however_often_a_server_hangs_up(
    station: Station, hub: BadHub
) -> None:
    url = hub.add("/x/tiny.gguf", DATA, *["cut@20000"] * 60)
    steps = station.pull(url, insecure=True)
    seen: dict[str, int] = {}
    for step in steps:
        assert step.completed >= seen.get(step.status, 0), step
        assert step.completed <= step.total or not step.total, step
        seen[step.status] = step.completed
    assert steps[-1].status == "success"
    assert station.weights("tiny") == DATA


def test_an_error_is_gone_from_the_job_once_the_pull_goes_well(
    station: Station, hub: BadHub
) -> None:
    url = hub.add("/x/tiny.gguf", DATA)

    async def twice() -> None:
        failing = station.manager(options(error={"code": "bad_format", "message": "spoilt"}))
        with pytest.raises(FtmanError):
            async for _ in failing.pull(url, insecure=True):
                pass
        (job,) = failing.jobs()
        assert (job.state, bool(job.error)) == ("failed", True)
        await failing.close()
        working = station.manager()
        async for _ in working.pull(url, insecure=True):
            pass
        newest = max(working.jobs(), key=lambda view: view.updated_wall_s)
        assert (newest.state, newest.error) == ("done", "")
        await working.close()

    asyncio.run(twice())


def test_a_proxy_is_used_for_other_machines_and_never_for_this_one(
    hub: BadHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with BadHub() as proxy:
        proxy.add("/far/f", DATA)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        far = file_of("http://models.example/far/f", digest=DIGEST, size=len(DATA))
        fetch(far, tmp_path / "far")
        assert (tmp_path / "far").read_bytes() == DATA
        assert proxy.bytes_sent("/far/f") >= len(DATA)
        near = file_of(hub.add("/near/f", DATA), digest=DIGEST, size=len(DATA))
        fetch(near, tmp_path / "near")
        assert proxy.requests("/near/f") == []
        monkeypatch.setenv("NO_PROXY", "models.example")
        monkeypatch.setenv("no_proxy", "models.example")
        before = len(proxy.asked)
        with pytest.raises(NetworkError):
            fetch(far, tmp_path / "other")
        assert len(proxy.asked) == before


class _Serves(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/stalls":
            self.server.over.wait(10)  # type: ignore[attr-defined]
            return
        first, _, last = self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(DATA)) + 1, len(DATA))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(DATA[start:end])


@pytest.fixture
def company_server() -> Iterator[str]:
    """A server whose certificate only a company's own authority has signed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Serves)
    server.daemon_threads = True
    server.over = threading.Event()  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "localhost-cert.pem", TLS / "localhost-key.pem")
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_address[1]}/f"
    server.over.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_authority_of_ones_own_is_believed_when_it_is_named(
    company_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(company_server, digest=DIGEST, size=len(DATA))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(NetworkError, match="certificate"):
        fetch(file, tmp_path / "f")
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "localhost-cert.pem"))
    fetch(file, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_silence_behind_tls_is_told_as_silence_and_tried_again(
    company_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "localhost-cert.pem"))
    url = company_server.removesuffix("/f") + "/stalls"
    with pytest.raises(NetworkError, match=r"sends nothing \(timed out\)"):
        fetch(file_of(url, digest=DIGEST, size=len(DATA)), tmp_path / "f")

"""https by certificate files, and the command line's own way in where keys are asked for."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from ftman.cli.client import ManagerClient, probe
from ftman.config import Config, Paths, load_config
from ftman.errors import NetworkError, UsageError
from ftman.gateway.serve_process import check_certificate
from tests.e2e.processes import manager_process

TLS = Path(__file__).resolve().parents[2] / "data" / "tls"
CERT, KEY = TLS / "cert.pem", TLS / "key.pem"


def config(tmp_path: Path, **changes: object) -> Config:
    return Config(Paths(tmp_path, tmp_path / "models"), **changes)  # type: ignore[arg-type]


def test_certificates_that_cannot_be_used_stop_the_start(tmp_path: Path) -> None:
    check_certificate(config(tmp_path))
    check_certificate(config(tmp_path, tls_cert=CERT, tls_key=KEY))
    for cert, key in ((tmp_path / "none", KEY), (CERT, CERT), (KEY, CERT)):
        with pytest.raises(UsageError, match="cannot be used"):
            check_certificate(config(tmp_path, tls_cert=cert, tls_key=key))
    with pytest.raises(UsageError, match="belong together"):
        config(tmp_path, tls_cert=CERT)
    with pytest.raises(UsageError, match="there is no certificate"):
        check_certificate(load_config({"FT_HOME": str(tmp_path), "FT_HOST": "https://127.0.0.1"}))


def test_a_manager_speaks_https_and_its_command_line_believes_its_own_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ftman.cli.main import main
    from ftman.keys import MANAGE, create_key
    from tests.e2e import processes

    home = tmp_path / "home"
    secret = create_key(home / "keys.json", "boss", MANAGE)
    monkeypatch.setattr(processes, "wait_for", lambda home, process: _url(home))
    settings = {"FT_TLS_CERT": str(CERT), "FT_TLS_KEY": str(KEY)}
    with manager_process(home, **settings) as manager:
        assert manager.url.startswith("https://127.0.0.1:")
        assert probe(manager.url, CERT) == "ft"
        with ManagerClient(manager.url, key=secret, certificate=CERT) as client:
            assert client.get("/api/tags") == {"models": []}
            with client.twin() as twin:
                assert twin.get("/api/ft/status")["version"]
        with ManagerClient(manager.url) as stranger, pytest.raises(NetworkError, match="believed"):
            stranger.get("/api/tags")
        unsafe = ssl.create_default_context()
        unsafe.check_hostname, unsafe.verify_mode = False, ssl.CERT_NONE
        assert httpx.get(f"{manager.url}/api/tags", verify=unsafe).status_code == 401
        for name, value in {**settings, "FT_HOME": str(home), "FT_HOST": "127.0.0.1:0"}.items():
            monkeypatch.setenv(name, value)
        assert main(["list"]) == 0  # without a key: the run folder proves that it is us
        assert capsys.readouterr().out.startswith("NAME")
        monkeypatch.setenv("FT_API_KEY", "wrong")
        assert main(["list"]) == 1
        assert "API key missing or wrong" in capsys.readouterr().err


def _url(home: Path) -> str:
    """Where the manager says it is, once it is there."""
    import json

    from ftman.clock import SYSTEM, pause

    limit = SYSTEM.monotonic() + 30
    while SYSTEM.monotonic() < limit:
        try:
            url = str(json.loads((home / "run" / "manager.json").read_text())["address"])
        except (OSError, ValueError):
            url = ""
        if url and probe(url, CERT) == "ft":
            return url
        pause(0.02)
    raise AssertionError((home / "stderr.log").read_text())

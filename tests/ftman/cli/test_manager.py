"""Finding the manager, starting it, and leaving other people's servers alone."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.cli import manager as manager_module
from ftman.cli.client import is_local, probe
from ftman.cli.manager import Finder, finder
from ftman.cli.output import Output
from ftman.config import Config, Paths, load_config
from ftman.errors import ConflictError, FtmanError, NetworkError
from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import Gateway, running

# Listens, answers as ft does, and records itself: what the CLI may expect of `ft serve`.
FAKE_SERVE = """
import sys, threading
sys.path.insert(0, {root!r})
from tests.ftman.cli.gateway import Gateway, running, _Server, _handler
gateway = Gateway()
gateway.on("GET", "/", __import__("tests.ftman.cli.gateway", fromlist=["Reply"]).Reply(b"x"))
gateway.on("GET", "/api/ft/status", {{"version": "x"}})
gateway.on("GET", "/api/tags", {{"models": []}})
host, port = sys.argv[-1].split(":")
server = _Server((host, int(port)), _handler(gateway))
server.serve_forever()
"""
ROOT = str(Path(__file__).resolve().parents[3])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make_finder(tmp_path: Path, port: int, *, given: bool = False) -> Finder:
    out = Output(io.StringIO(), io.StringIO())
    config = Config(Paths(tmp_path, tmp_path / "models"), port=port)
    return Finder(config, out, given)


def notes(found: Finder) -> str:
    assert isinstance(found.out.stderr, io.StringIO)
    return found.out.stderr.getvalue()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts a fake manager in place of `python -m ftman serve`; ends it afterwards."""
    made: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(argv: list[str], **options: object) -> subprocess.Popen[bytes]:
        assert argv[1:5] == ["-m", "ftman", "serve", "--address"]
        code = FAKE_SERVE.format(root=ROOT)
        made.append(real([sys.executable, "-c", code, *argv[4:]], **options))  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr(manager_module.subprocess, "Popen", popen)
    yield made
    for process in made:
        process.kill()
        process.wait()


def record(tmp_path: Path, url: str) -> None:
    (tmp_path / "run").mkdir(parents=True, exist_ok=True)
    value = {"address": url.removeprefix("http://"), "pid": 1, "version": "x"}
    (tmp_path / "run" / "manager.json").write_text(json.dumps(value))


def test_our_manager_at_the_address_is_used(tmp_path: Path) -> None:
    with running(Gateway()) as gateway:
        found = make_finder(tmp_path, int(gateway.url.rpartition(":")[2]))
        assert found.running() == gateway.url
        assert notes(found) == ""


def test_nobody_answering_starts_one_and_says_so_once(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    port = free_port()
    found = make_finder(tmp_path, port)
    with found.connect() as client:
        assert client.url == f"http://127.0.0.1:{port}"
    assert notes(found).count("starting the ft manager in the background") == 1
    assert found.running() == f"http://127.0.0.1:{port}"
    assert len(started) == 1
    assert (tmp_path / "logs" / "manager.log").exists()


def test_a_stranger_on_the_default_port_makes_us_use_the_next_free_one(
    tmp_path: Path,
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    next_port = free_port()
    monkeypatch.setattr(manager_module, "DEFAULT_PORT", next_port - 1)
    with running(Gateway(server_header="")) as stranger:
        port = int(stranger.url.rpartition(":")[2])
        found = make_finder(tmp_path, port)
        with found.connect() as client:
            assert client.url == f"http://127.0.0.1:{next_port}"
        assert f"port {port} is taken by Ollama; ft uses port {next_port}\n" in notes(found)
        assert {path for _, path, _ in stranger.requests} == {"/"}


def test_a_stranger_on_the_default_port_and_ours_elsewhere_uses_ours(tmp_path: Path) -> None:
    with running(Gateway(server_header="nginx")) as stranger, running(Gateway()) as ours:
        record(tmp_path, ours.url)
        found = make_finder(tmp_path, int(stranger.url.rpartition(":")[2]))
        assert found.running() == ours.url
        assert {path for _, path, _ in stranger.requests} == {"/"}


def test_a_stranger_at_a_chosen_address_is_an_error_with_the_way_out(
    ft: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Gateway(server_header="")) as stranger:
        monkeypatch.setenv("FT_HOST", stranger.url)
        done = ft("pull", "m")
        assert done.code == 1
        assert f"Ollama answers at {stranger.url} (FT_HOST), not ft" in done.err
        assert "FT_HOST=127.0.0.1:11435 ft serve" in done.err
        assert {path for _, path, _ in stranger.requests} == {"/"}


def test_a_record_of_a_manager_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    record(tmp_path, f"http://127.0.0.1:{free_port()}")
    assert make_finder(tmp_path, free_port()).running() == ""
    (tmp_path / "run" / "manager.json").write_text("[]")
    assert make_finder(tmp_path, free_port()).running() == ""


def test_a_record_cannot_send_us_to_another_machine_or_stranger(tmp_path: Path) -> None:
    with running(Gateway(server_header="evil")) as stranger:
        record(tmp_path, stranger.url)
        assert make_finder(tmp_path, free_port()).running() == ""
    record(tmp_path, "http://192.0.2.1:80")
    assert make_finder(tmp_path, free_port()).running() == ""


def test_a_manager_that_fails_to_start_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    code = "import sys; sys.exit('error: the disk is gone\\n  Mend it: mend\\nbye')"
    monkeypatch.setattr(
        manager_module.subprocess,
        "Popen",
        lambda argv, **options: real([sys.executable, "-c", code], **options),
    )
    with pytest.raises(FtmanError) as caught:
        make_finder(tmp_path, free_port()).connect()
    assert caught.value.message == "the ft manager did not start: the disk is gone"
    assert caught.value.hint == f"Mend it: mend\nLog: {tmp_path / 'logs' / 'manager.log'}"


def test_a_manager_that_ends_without_a_word_is_told_with_the_free_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    monkeypatch.setattr(
        manager_module.subprocess,
        "Popen",
        lambda argv, **options: real([sys.executable, "-c", ""], **options),
    )
    monkeypatch.setattr(manager_module.files, "free_bytes", lambda folder: 0)
    with pytest.raises(FtmanError, match="wrote nothing into its log, whose disk has 0 B free"):
        make_finder(tmp_path, free_port()).connect()


def test_a_remote_manager_is_never_started(tmp_path: Path) -> None:
    found = make_finder(tmp_path, free_port(), given=True)
    config = replace(found.config, host="manager.invalid")
    with pytest.raises(NetworkError, match="not on this machine"):
        replace(found, config=config).connect()


def test_a_full_set_of_ports_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "_is_free", lambda host, port: False)
    with running(Gateway(server_header="")) as stranger, pytest.raises(ConflictError, match="all"):
        make_finder(tmp_path, int(stranger.url.rpartition(":")[2]))._free_address()


def test_only_a_chosen_address_counts_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_HOST")
    out = Output(io.StringIO(), io.StringIO())
    assert not finder(load_config(), out).host_given
    monkeypatch.setenv("FT_HOST", "127.0.0.1:11434")
    assert finder(load_config(), out).host_given


def test_probe_tells_who_answers() -> None:
    with running(Gateway()) as ours, running(Gateway(server_header="")) as ollama:
        assert (probe(ours.url), probe(ollama.url)) == ("ft", "ollama")
    assert probe(f"http://127.0.0.1:{free_port()}") == ""


def test_a_server_that_speaks_no_http_is_a_stranger() -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def talk() -> None:
            connection, _ = server.accept()
            connection.sendall(b"SSH-2.0-x\r\n")
            connection.close()

        thread = threading.Thread(target=talk)
        thread.start()
        assert probe(f"http://127.0.0.1:{port}") == "other"
        thread.join()


def test_local_addresses() -> None:
    assert all(is_local(f"http://{h}:1") for h in ("127.0.0.1", "[::1]", "localhost", "127.1.2.3"))
    assert not any(is_local(f"http://{h}:1") for h in ("10.0.0.1", "example.org", "0.0.0.0"))


def test_a_proxy_never_sees_talk_with_our_own_manager(
    ft: Cli, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.on("GET", "/api/tags", {"models": []})
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ft("list").code == 0


def test_status_and_shutdown_start_nothing(
    ft: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FT_HOST", f"127.0.0.1:{free_port()}")
    status = ft("status")
    assert status.code == 1
    assert "not running" in status.err
    assert ft("shutdown").code == 0
    assert not (tmp_path / "ft-home" / "logs").exists()


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("ps",), "NAME"),
        (("ps", "--json"), '{"models": []}'),
        (("ps", "--experts"), ""),
        (("ps", "--queue"), "POSITION"),
        (("ps", "--queue", "--json"), '{"queue": []}'),
        (("stop", "m"), ""),
    ],
    ids=" ".join,
)
def test_ps_and_stop_start_no_manager(
    ft: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    out: str,
    started: list[subprocess.Popen[bytes]],
) -> None:
    monkeypatch.setenv("FT_HOME", str(tmp_path))
    monkeypatch.setenv("FT_HOST", f"127.0.0.1:{free_port()}")
    done = ft(*words)
    assert done.code == 0
    assert done.out.split()[:1] == out.split()[:1]
    assert len(done.out.splitlines()) <= 1
    assert "the ft manager is not running, so no model is loaded" in done.err
    assert started == []


def test_a_manager_of_another_machine_that_does_not_answer_is_no_empty_list(
    ft: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "probe", lambda url, certificate: "")
    monkeypatch.setenv("FT_HOST", "http://192.0.2.1:1")
    for words in (("ps",), ("stop", "m"), ("gc",), ("list",)):
        done = ft(*words)
        assert done.code == 4, words
        assert "it is not on this machine" in done.err

"""The manager as a process: record, port, lock, signals, memory, what it leaves behind."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ftman.config import Paths
from tests.e2e.processes import ROOT, manager_process
from tests.ftman.gateway.serving import install

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
SLOW = (sys.executable, "-m", "tests.e2e.fake_manager", '{"token_s": 0.05}')


def start_second(home: Path, host: str) -> subprocess.CompletedProcess[str]:
    """Try to start another manager; returns when it has given up."""
    env = {"FT_HOME": str(home), "FT_HOST": host, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "tests.e2e.fake_manager"]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_with_code_0(tmp_path: Path, number: int) -> None:
    with manager_process(tmp_path) as manager:
        record = json.loads((tmp_path / "run/manager.json").read_text())
        assert record["address"] == manager.url.removeprefix("http://")
        assert record["pid"] == manager.process.pid
        assert manager.stop(number) == 0
        assert not (tmp_path / "run/manager.json").exists()
        assert "Traceback" not in manager.log


def test_shutdown_by_request(tmp_path: Path) -> None:
    with manager_process(tmp_path) as manager:
        assert httpx.post(f"{manager.url}/api/ft/shutdown").status_code == 200
        assert manager.process.wait(20) == 0


def test_a_second_manager_on_one_store_refuses_with_the_pid(tmp_path: Path) -> None:
    with manager_process(tmp_path) as manager:
        done = start_second(tmp_path, "127.0.0.1:0")
        assert done.returncode != 0
        assert str(manager.process.pid) in done.stderr
        assert httpx.get(f"{manager.url}/").status_code == 200


def test_a_port_taken_by_us_says_so(tmp_path: Path) -> None:
    with manager_process(tmp_path / "a") as manager:
        done = start_second(tmp_path / "b", manager.url.removeprefix("http://"))
        assert done.returncode != 0
        assert "ft is already serving on" in done.stderr
        assert f"pid {manager.process.pid}" in done.stderr


def test_a_port_taken_by_a_stranger_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        done = start_second(tmp_path, f"127.0.0.1:{port}")
    assert done.returncode != 0
    assert re.search(rf"port {port} is taken by .*\(pid \d+\)", done.stderr)


def test_an_open_bind_is_refused(tmp_path: Path) -> None:
    done = start_second(tmp_path, "0.0.0.0:0")
    assert done.returncode != 0
    assert "without an API key" in done.stderr


def test_term_lets_an_answer_finish_and_admits_nothing_new(tmp_path: Path) -> None:
    install(Paths(tmp_path, tmp_path / "models"))
    with manager_process(tmp_path) as manager:
        body = CHAT | {"options": {"num_predict": 11}}
        with httpx.stream("POST", f"{manager.url}/api/chat", json=body, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            manager.process.send_signal(signal.SIGTERM)
            assert refuses_within(5.0, manager.url)
            rest = [json.loads(line) for line in lines]
        assert rest[-1]["done"] is True
        assert manager.process.wait(20) == 0


def refuses_within(limit_s: float, url: str) -> bool:
    """Whether new connections are refused before the limit is over."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            httpx.get(f"{url}/", trust_env=False)
        except httpx.ConnectError:
            return True
    return False


def test_a_second_interrupt_cuts_with_a_typed_error(tmp_path: Path) -> None:
    install(Paths(tmp_path, tmp_path / "models"))
    with manager_process(tmp_path, SLOW) as manager:
        with httpx.stream("POST", f"{manager.url}/api/chat", json=CHAT, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            started = time.monotonic()
            manager.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
            manager.process.send_signal(signal.SIGINT)
            rest = [json.loads(line) for line in lines]
        assert "shutting down" in rest[-1]["error"]
        assert not any(line.get("done") for line in rest)
        assert manager.process.wait(20) == 0
        assert time.monotonic() - started < 10


def test_an_idle_manager_is_small_and_quiet(tmp_path: Path) -> None:
    install(Paths(tmp_path, tmp_path / "models"))
    with manager_process(tmp_path) as manager:
        pid = manager.process.pid
        assert resident_bytes(pid) < 80e6
        httpx.post(f"{manager.url}/api/chat", json=CHAT | {"keep_alive": 0}, timeout=60)
        deadline = time.monotonic() + 10
        while resident_bytes(pid) >= 80e6:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = cpu_seconds(pid)
        time.sleep(0.05)
        for _ in range(19):
            time.sleep(0.05)
        assert cpu_seconds(pid) - before <= 0.05


def resident_bytes(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert match
    return float(match.group(1)) * 1024


def cpu_seconds(pid: int) -> float:
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / 100


def test_listings_stay_quick_while_answers_stream(tmp_path: Path) -> None:
    install(Paths(tmp_path, tmp_path / "models"))
    with manager_process(tmp_path, SLOW) as manager:
        stop = threading.Event()

        def stream() -> None:
            url = f"{manager.url}/api/chat"
            with httpx.stream("POST", url, json=CHAT, timeout=60) as reply:
                for _ in reply.iter_lines():
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=stream) for _ in range(4)]
        for thread in threads:
            thread.start()
        took: list[float] = []
        with httpx.Client(base_url=manager.url, trust_env=False) as client:
            client.get("/api/tags")
            for path in ("/api/tags", "/api/ps", "/health", "/api/version") * 10:
                started = time.monotonic()
                assert client.get(path).status_code == 200
                took.append(time.monotonic() - started)
        stop.set()
        for thread in threads:
            thread.join(20)
        assert sorted(took)[len(took) // 2] <= 0.5, sorted(took)


def test_no_answer_is_logged_with_its_text(tmp_path: Path) -> None:
    install(Paths(tmp_path, tmp_path / "models"))
    with manager_process(tmp_path) as manager:
        secret: dict[str, Any] = {"messages": [{"role": "user", "content": "my secret"}]}
        httpx.post(f"{manager.url}/api/chat", json=CHAT | secret, timeout=60)
        end = time.monotonic() + 5
        while "POST /api/chat 200 tiny" not in manager.log:
            assert time.monotonic() < end, manager.log
            time.sleep(0.01)
        assert "secret" not in manager.log

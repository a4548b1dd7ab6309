"""F15: the port belongs to somebody else, to nobody any more, or is asked for by many at once."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import httpx

from tests.e2e.faults.manager_process import CHAT, FAKE, Rig, ask, fake, in_background, runs, until
from tests.e2e.processes import REAL, ROOT
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import ids_of

RACERS = 3


def environment(home: Path, host: str) -> dict[str, str]:
    """A bare environment for one manager."""
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {"FT_HOME": str(home), "FT_HOST": host, "PYTHONPATH": str(ROOT), "PATH": path}


def launch(home: Path, host: str) -> subprocess.Popen[str]:
    """The real program, in the background."""
    return subprocess.Popen(
        REAL, cwd=ROOT, env=environment(home, host), stderr=subprocess.PIPE, text=True
    )


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@runs
def test_of_many_managers_on_one_port_one_wins_and_the_others_say_why(
    tmp_path: Path, num_points: int
) -> None:
    rounds = -(-num_points // RACERS)
    for number in range(rounds):
        port = free_port()
        homes = [tmp_path / f"{number}-{racer}" for racer in range(RACERS)]
        racers = [launch(home, f"127.0.0.1:{port}") for home in homes]
        try:
            until(lambda racers=racers: sum(r.poll() is None for r in racers) == 1, 30)
            winner = next(racer for racer in racers if racer.poll() is None)
            until(lambda port=port: httpx.get(f"http://127.0.0.1:{port}/").status_code == 200, 20)
            for racer, home in zip(racers, homes, strict=True):
                if racer is winner:
                    record = json.loads((home / "run" / "manager.json").read_text())
                    assert record["pid"] == winner.pid
                    continue
                assert racer.returncode == 1
                assert racer.stderr is not None
                told = racer.stderr.read()
                assert f"{port}" in told
                assert "Traceback" not in told
                assert not (home / "run" / "manager.json").exists()
        finally:
            for racer in racers:
                racer.terminate()
                racer.communicate(timeout=60)
        assert winner.returncode == 0


def test_a_port_left_in_time_wait_is_no_obstacle(rig: Rig) -> None:
    port = free_port()
    slow = fake(FakeScript(tokens=ids_of("hello") * 50, token_s=0.01))
    for _ in range(2):
        with rig.manager(slow, FT_HOST=f"127.0.0.1:{port}") as manager:
            thread = in_background(lambda url=manager.url: ask(url, CHAT))  # type: ignore[misc]
            httpx.get(f"{manager.url}/", trust_env=False)
            manager.process.kill()  # our side closes first: its sockets linger
            manager.process.wait(10)
            thread.join(10)


@runs
def test_the_record_of_a_chosen_port_is_never_seen_half(rig: Rig, num_points: int) -> None:
    record = rig.home / "run" / "manager.json"
    for _ in range(num_points):
        stop = time.monotonic() + 30
        seen: list[str] = []

        def read(stop: float = stop, seen: list[str] = seen) -> None:
            while time.monotonic() < stop and not seen:
                with contextlib.suppress(FileNotFoundError):
                    seen.append(record.read_text())

        record.unlink(missing_ok=True)
        thread = in_background(read)
        with rig.manager(FAKE) as manager:
            thread.join(30)
            assert json.loads(seen[0])["address"] == manager.url.removeprefix("http://")


def test_ipv6_loopback_or_a_clear_refusal(rig: Rig, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        done = subprocess.run(
            REAL,
            cwd=ROOT,
            env=environment(tmp_path / "v6", "[::1]:0"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        assert "cannot listen on [::1]" in done.stderr
        return
    with rig.manager(FAKE, FT_HOST="[::1]:0") as manager:
        assert manager.url.startswith("http://[::1]:")
        assert httpx.get(f"{manager.url}/", trust_env=False).status_code == 200

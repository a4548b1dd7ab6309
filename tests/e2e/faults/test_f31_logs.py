"""F31: logs on a full disk, without their folder, in a flood, and with secrets near them.

Lines are written where they are made, so none is ever dropped for want of speed and there is no
count of dropped ones; a log that is cut loses what was written in that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from ftman import faults, files
from ftman import log as log_module
from ftman.config import Paths
from ftman.gateway import serve_process
from ftman.keys import MANAGE, create_key, keys_path
from ftman.supervisor.rundir import EngineLog
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import CHAT, FAKE, Rig, ask, runs
from tests.e2e.processes import ROOT
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import ids_of, install

GOOD = FakeScript(tokens=ids_of("Hello world"))
LIMIT_BYTES = 20_000
LINES_PER_POINT = 4000
FLOOD = """
import sys, logging
from ftman import log
log.configure()
for number in range(int(sys.argv[1])):
    logging.getLogger("flood").info("line %d of a flood", number)
"""


def sizes(path: Path) -> list[int]:
    """Of a log and its older ones."""
    return [item.stat().st_size for item in path.parent.glob(f"{path.name}*")]


@runs
def test_a_flood_is_kept_within_its_limit_while_it_is_written(
    tmp_path: Path, num_points: int
) -> None:
    path = tmp_path / "flood.log"
    count = LINES_PER_POINT * num_points
    with files.open_log(path) as out:
        flood = subprocess.Popen(
            [sys.executable, "-c", FLOOD, str(count)],
            cwd=ROOT,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    while flood.poll() is None:
        files.rotate_log(path, LIMIT_BYTES, log_module.KEPT)
        time.sleep(0.002)
    assert flood.returncode == 0
    assert len(sizes(path)) == 1 + log_module.KEPT
    for item in path.parent.glob("flood.log*"):
        for line in item.read_bytes().splitlines()[1:-1]:  # both ends may have been cut
            assert b" INFO flood: line " in line, line[:200]


@runs
def test_a_log_that_cannot_be_kept_is_cut_and_no_engine_ends_by_it(
    rig: Rig, num_points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineLog.rotate, "__defaults__", (100,))
    with rig.inside(GOOD) as manager:
        invariants.ended_once(ask(manager.url, CHAT))
        (engine,) = manager.service.running()
        path = EngineLog(manager.config.paths, engine.name).path
        for _ in range(num_points):
            with path.open("ab") as out:
                out.write(b"x" * 5000)
            number = rig.rng.choice((errno.ENOSPC, errno.EIO, errno.EROFS))
            point = rig.rng.choice(("files.open", "files.write", "files.rename", "files.fsync"))
            faults.arm(f"{point}=error:{errno.errorcode[number]}")
            time.sleep(0.05)  # the next looks at its health, and with them at its log
            answer = ask(manager.url, CHAT)
            faults.arm("")
            invariants.ended_once(answer)
            assert answer.complete, answer.lines
        assert [item.name for item in manager.service.running()] == [engine.name]


def test_the_managers_own_log_is_rotated_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "logs" / log_module.NAME
    monkeypatch.setattr(log_module, "LIMIT_BYTES", 1000)
    kept = os.dup(2)
    try:
        with files.open_log(path) as out:
            os.dup2(out.fileno(), 2)

            async def main() -> None:
                task = asyncio.ensure_future(serve_process.keep_small(path, every_s=0.005))
                for _ in range(20):
                    os.write(2, b"y" * 400 + b"\n")
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            asyncio.run(main())
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert len(sizes(path)) == 1 + log_module.KEPT
    assert max(sizes(path)) <= 2000
    other = tmp_path / "other.log"
    other.write_bytes(b"z" * 5000)

    async def look() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(serve_process.keep_small(other, every_s=0.005), 0.03)

    asyncio.run(look())
    assert other.stat().st_size == 5000, "a file that is not our stderr is not ours to cut"


def test_without_the_folder_of_the_logs_everything_goes_on(rig: Rig) -> None:
    with rig.inside(GOOD) as manager:
        invariants.ended_once(ask(manager.url, CHAT))
        shutil.rmtree(manager.config.paths.logs)
        invariants.ended_once(ask(manager.url, CHAT))
        body = {"model": "tiny", "keep_alive": 0}
        manager.http.post("/api/generate", json=body)
        invariants.answers_when_healthy(manager.url)
        assert list(manager.config.paths.logs.glob("engine-*.log"))


@runs
def test_no_secret_of_a_request_comes_into_a_log(rig: Rig, num_points: int) -> None:
    paths = Paths(rig.home, rig.home / "models")
    install(paths)
    secrets = [f"hush{rig.rng.randrange(1 << 60):x}" for _ in range(4 * num_points)]
    spoken = "my own secret words"
    with rig.manager(FAKE) as manager, httpx.Client(trust_env=False, timeout=60) as client:
        key = create_key(keys_path(paths), "boss", MANAGE)
        for secret in secrets:
            name = rig.rng.choice(("authorization", "x-api-key", "cookie", "proxy-authorization"))
            headers = {name: f"Bearer {secret}" if "auth" in name else secret}
            path = rig.rng.choice(("/api/tags", "/nowhere", "/v1/models", "/api/chat"))
            client.get(f"{manager.url}{path}?key={secret}", headers=headers)
        messages = [{"role": "user", "content": spoken}]
        for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
            body = {"model": "tiny", "messages": messages, "stream": False}
            assert client.post(f"{manager.url}/api/chat", json=body, headers=headers).is_success
        logs = "".join(item.read_text("utf-8", "replace") for item in rig.home.rglob("*.log"))
    for secret in (*secrets, key, spoken):
        assert secret not in logs


def test_one_record_is_one_line_whatever_it_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        log_module.configure()
        threads = [
            threading.Thread(
                target=lambda n=n: [  # type: ignore[misc]
                    logging.getLogger("t").info("a\nb\r\x1b[2J %d %d", n, i) for i in range(200)
                ]
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 800
    assert all(line.isprintable() and "a\\nb" in line for line in lines)

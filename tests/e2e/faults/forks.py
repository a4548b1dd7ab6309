"""Managers by the hundred: one process that has imported everything forks each of them.

A fork starts in a fraction of the time of a new interpreter and is a real process with its own
signals, sockets and locks. As a program (`python -m tests.e2e.faults.forks SCRIPT-JSON [QUIET-S]`)
it reads lines {"environment", "log"} and answers {"pid"}, and later {"pid", "status"} when one has
ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import tokenizers  # noqa: F401 - or the first request would load it in every fork

from ftman import log
from ftman.config import load_config
from ftman.gateway.app import serve
from ftman.supervisor import supervisor
from ftman.supervisor.watch import Timings
from tests.e2e.faults.manager_process import until
from tests.e2e.processes import ROOT, is_answering
from tests.fakes.engine import FakeLauncher, FakeScript

LOOK_EVERY_S = 0.01


@dataclass
class Forked:
    """A running manager."""

    pid: int
    url: str
    home: Path
    forks: Forks

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.home / "stderr.log").read_text()

    def signal(self, number: int) -> None:
        """Send it one."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, limit_s: float = 25) -> int:
        """Its exit code, negative for a signal."""
        until(lambda: self.pid in self.forks.ended, limit_s)
        return self.forks.ended[self.pid]


class Forks:
    """The process that forks. Use as a context manager; ends those that still run.

    quiet_s: after so long without work they prepare an engine; None = never.
    """

    def __init__(self, script: FakeScript, quiet_s: float | None = None):
        self._arguments = [script.to_json(), *([] if quiet_s is None else [str(quiet_s)])]
        self._started: list[int] = []
        self._news = threading.Condition()
        self._turn = threading.Lock()
        self.ended: dict[int, int] = {}

    def __enter__(self) -> Forks:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.faults.forks", *self._arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        for pid in set(self._started) - set(self.ended):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, home: Path, environment: Mapping[str, str]) -> Forked:
        """A manager that answers."""
        forked = self.launch(home, environment)
        record = home / "run" / "manager.json"

        def place() -> str:
            assert forked.pid not in self.ended, forked.log
            value = json.loads(record.read_text())
            url = f"http://{value['address']}"
            return url if value["pid"] == forked.pid and is_answering(url) else ""

        return replace(forked, url=until(place, 20))

    def launch(self, home: Path, environment: Mapping[str, str]) -> Forked:
        """A manager that has only just begun; its URL is not known yet."""
        home.mkdir(parents=True, exist_ok=True)
        given = {"FT_HOME": str(home), "FT_HOST": "127.0.0.1:0", **environment}
        line = json.dumps({"environment": given, "log": str(home / "stderr.log")})
        with self._turn, self._news:
            before = len(self._started)
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            assert self._news.wait_for(lambda: len(self._started) > before, 20)
            return Forked(self._started[before], "", home, self)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._news:
                if "status" in told:
                    self.ended[told["pid"]] = told["status"]
                else:
                    self._started.append(told["pid"])
                self._news.notify_all()


def main(launcher: FakeLauncher) -> None:
    """Fork on demand until the input ends."""
    gc.freeze()  # or the first collection in each fork would copy every page
    running: set[int] = set()
    while True:
        ready = select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]
        if ready:
            line = sys.stdin.readline()
            if not line:  # whoever asked for them is gone
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                return
            running.add(_fork(json.loads(line), launcher))
        running -= _report_ended()


def _fork(given: dict[str, Any], launcher: FakeLauncher) -> int:
    pid = os.fork()
    if pid:
        _say({"pid": pid})
        return pid
    status = 70
    try:
        status = _serve(given, launcher)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _serve(given: dict[str, Any], launcher: FakeLauncher) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    told = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for number, target in ((null, 0), (null, 1), (told, 2)):
        os.dup2(number, target)
    for key in [key for key in os.environ if key.startswith(("FT_", "OLLAMA_"))]:
        del os.environ[key]
    os.environ.update(given["environment"])
    log.configure()
    return serve(load_config(), launcher=launcher)


def _report_ended() -> set[int]:
    ended: set[int] = set()
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended.add(pid)
            _say({"pid": pid, "status": os.waitstatus_to_exitcode(status)})
    return ended


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    prepares = len(sys.argv) > 2
    launcher = FakeLauncher(FakeScript.from_json(sys.argv[1]), waits=prepares)
    timings = partial(Timings, quiet_s=float(sys.argv[2])) if prepares else Timings
    with mock.patch.object(supervisor, "Timings", timings):
        main(launcher)

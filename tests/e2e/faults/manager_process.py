"""A real manager for the fault tests: private home, private HOME and TMPDIR, and its clients.

Starting and ending one process is tests/e2e/processes.py; here is what a fault needs around it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx
import pytest

from ftman.config import Paths
from ftman.supervisor import supervisor
from ftman.supervisor.watch import Timings
from tests.e2e.faults import invariants
from tests.e2e.processes import FAKE, ManagerProcess, manager_process
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, Tiny, make_config, managing
from tests.ftman.supervisor.harness import QUICK

if TYPE_CHECKING:
    from tests.e2e.faults.forks import Forked, Forks

SHORT, LONG = 5, 50
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
runs = pytest.mark.parametrize("num_points", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
"""Every fault runs at this many random points."""

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""All of it is plain HTTP; reading the certificates for it would take most of the time."""
_LIMITED = (
    "import os,resource,sys;n=int(sys.argv[1]);"
    "resource.setrlimit(resource.RLIMIT_FSIZE,(n,n));os.execv(sys.argv[2],sys.argv[2:])"
)


def fake(script: FakeScript) -> tuple[str, ...]:
    """The command of a manager whose engines follow a script."""
    return (sys.executable, "-m", "tests.e2e.faults.serve_fake", script.to_json())


def with_file_limit(command: tuple[str, ...], limit_bytes: int) -> tuple[str, ...]:
    """The same command, but no file of it or of its children may grow beyond the limit."""
    return (sys.executable, "-S", "-c", _LIMITED, str(limit_bytes), *command)


@dataclass
class Answer:
    """What one client saw of one request. broken: the connection ended in the middle."""

    status: int = 0
    lines: list[str] = field(default_factory=list)
    broken: bool = False
    ended_s: float = 0.0

    @property
    def values(self) -> list[dict[str, Any]]:
        """NDJSON lines, or the data of SSE frames other than the final mark."""
        texts = [line.removeprefix("data: ") for line in self.lines if line and line[0] != ":"]
        return [json.loads(text) for text in texts if text != "[DONE]"]

    @property
    def error(self) -> str:
        """Text of the error that ended it; "" if none did."""
        found = self.values[-1].get("error", "") if self.lines else ""
        return str(found.get("message", "")) if isinstance(found, dict) else str(found)

    @property
    def text(self) -> str:
        """The generated text of a native answer."""
        told = (value.get("message", {}).get("content") for value in self.values)
        return "".join(text or "" for text in told) + "".join(
            value.get("response", "") for value in self.values
        )

    @property
    def complete(self) -> bool:
        """It has its proper end."""
        last = self.lines[-1] if self.lines else ""
        return last == "data: [DONE]" or '"done":true' in last or '"status":"success"' in last

    @property
    def statuses(self) -> list[str]:
        """Words of a pull, repeats left out."""
        return list(dict.fromkeys(str(value.get("status", "")) for value in self.values))


def ask(
    url: str,
    body: dict[str, Any],
    path: str = "/api/chat",
    on_line: Callable[[Answer], None] | None = None,
) -> Answer:
    """Send one streaming request and read it to its end, however it ends.

    on_line is told after each line, before the next one is read.
    """
    answer = Answer()
    try:
        with (
            httpx.Client(trust_env=False, timeout=40, verify=NO_TLS) as client,
            client.stream("POST", url + path, json=body) as reply,
        ):
            answer.status = reply.status_code
            for line in filter(None, reply.iter_lines()):
                answer.lines.append(line)
                if on_line is not None:
                    on_line(answer)
    except httpx.HTTPError:
        answer.broken = True
    answer.ended_s = time.monotonic()
    return answer


def in_background(work: Callable[[], None]) -> threading.Thread:
    """A started thread; join it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Wait for a true value and return it."""
    deadline = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            found = condition()
            if found:
                return found
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@dataclass
class Rig:
    """One store and its surroundings, over several managers; the invariants are checked here.

    root holds the store `home`, and outside of it the manager's HOME, TMPDIR and working data.
    """

    root: Path
    rng: random.Random

    def __post_init__(self) -> None:
        self.home = self.root / "h"
        self._environment = {}
        for key in ("HOME", "TMPDIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            folder = self.root / "user" / key.lower()
            folder.mkdir(parents=True)
            self._environment[key] = str(folder)
        self._environment |= {"FT_RESERVE_BYTES": "0", "FT_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._outside = invariants.snapshot(self.root / "user")

    @property
    def paths(self) -> Paths:
        """Where the store lies."""
        return Paths(self.home, self.home / "models")

    def environment(self, **more: str) -> dict[str, str]:
        """What a manager is started with, beside the place of its store."""
        return self._environment | more

    @contextlib.contextmanager
    def manager(
        self, command: tuple[str, ...] = FAKE, **environment: str
    ) -> Iterator[ManagerProcess]:
        """A manager on the store. After its end: nothing left running, nothing written outside."""
        with manager_process(self.home, command, **self._environment | environment) as started:
            yield started
            invariants.no_traceback(started.log)
            sockets = invariants.engine_sockets(self.home)
        if started.process.returncode == 0:
            invariants.nothing_is_left(self.home, sockets)
        self.check_outside()

    @contextlib.contextmanager
    def forked(self, forks: Forks, **environment: str) -> Iterator[Forked]:
        """A manager from a fork. After its end: what `manager` checks."""
        started = forks.start(self.home, self._environment | environment)
        try:
            yield started
            sockets = invariants.engine_sockets(self.home)
        finally:
            started.signal(signal.SIGTERM)
            code = started.wait()
        invariants.no_traceback(started.log)
        if code == 0:
            invariants.nothing_is_left(self.home, sockets)
        self.check_outside()

    @contextlib.contextmanager
    def inside(
        self,
        script: Any,
        models: tuple[Tiny, ...] = (Tiny(),),
        timings: Timings = QUICK,
        **changes: Any,
    ) -> Iterator[Manager]:
        """A manager in this process, on the same store, with the same checks at its end.

        script: whatever FakeLauncher takes. changes: settings.
        """
        environment = self._environment | {"FT_HOME": str(self.home)}
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(supervisor, "Timings", partial(replace, timings)),
        ):
            config = make_config(self.home, **changes)
            with managing(self.home, script, models, config=config) as manager:
                yield manager
                sockets = invariants.engine_sockets(self.home)
            invariants.nothing_is_left(self.home, sockets)
        self.check_store()
        invariants.no_orphans(self.home / "models")
        self.check_outside()

    def pull(self, url: str, name: str, on_line: Callable[[Answer], None] | None = None) -> Answer:
        """Pull through a manager; name is whatever /api/pull takes."""
        return ask(url, {"model": name, "insecure": True}, "/api/pull", on_line)

    def check_store(self) -> dict[str, str]:
        """I1 on the files. Returns manifest name -> FTW id."""
        return invariants.sound_models(self.home / "models")

    def check_outside(self) -> None:
        """I6."""
        invariants.nothing_outside(self.root / "user", self._outside)

    def kill(self, manager: ManagerProcess) -> None:
        """SIGKILL, and wait for the end."""
        manager.process.kill()
        manager.process.wait(10)


def arrived(answer: Answer) -> float:
    """Fraction of the file that the last line of a pull reports."""
    last = answer.values[-1]
    if not str(last.get("status", "")).startswith("pulling ") or not last.get("total"):
        return 0.0
    return float(last.get("completed", 0)) / float(last["total"])


def begun_at(answer: Answer) -> float:
    """Fraction of the file that was there when the pull began."""
    values = (v for v in answer.values if v.get("total") and v["status"].startswith("pulling "))
    first = next(values, {"total": 1, "completed": 1})
    return float(first.get("completed", 0)) / float(first["total"])


def ended_well(answer: Answer) -> None:
    """A pull that ended once, with success."""
    invariants.ended_once(answer)
    assert answer.values[-1] == {"status": "success"}, answer.values[-1]


def engines(url: str) -> list[dict[str, Any]]:
    """What /api/ps says."""
    found: list[dict[str, Any]] = httpx.get(f"{url}/api/ps", trust_env=False).json()["models"]
    return found


def engine_pids(home: Path) -> list[int]:
    """Pids in the records of engines, of processes that live."""
    found = []
    for path in sorted((home / "run" / "engines").glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            pid = int(json.loads(path.read_text())["pid"])
            if pid and is_alive(pid):
                found.append(pid)
    return found


def engine_pid(home: Path, model: str) -> int:
    """The living engine of a model, by its record; 0 if there is none."""
    for path in sorted((home / "run" / "engines").glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            value = json.loads(path.read_text())
            pid = int(value["pid"])
            if value["spec"]["name"].partition(":")[0] == model and pid and is_alive(pid):
                return pid
    return 0


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Direct children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def send_signal(pid: int, number: int) -> None:
    """os.kill, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

"""A login, played in a namespace of its own: `python -m tests.e2e.login_scenario HOME MODEL`.

HOME is an empty folder, MODEL a folder with a checkpoint. A real systemd user manager runs in
there; it ends with the namespace. What was seen is printed as the last line, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.e2e.processes import ROOT

WITHIN_S = 60.0
ASK = "ft run tiny 'Which of the lights are on?'"


class Login:
    """One person's home, and the shells and the service manager in it."""

    def __init__(self, home: Path):
        self.home = home
        self.record = home / ".local/share/ft/run/manager.json"
        runtime = home / "runtime"
        runtime.mkdir(mode=0o700)
        self.environ = {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "LANG": "C.UTF-8"}
        self.environ["PATH"] = os.environ["PATH"]
        self._write_profile()

    def _write_profile(self) -> None:
        """What an installation leaves: `ft` in a login shell's path."""
        programs = self.home / "bin"
        programs.mkdir()
        ft = programs / "ft"
        ft.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ftman "$@"\n')
        ft.chmod(0o755)
        (self.home / ".profile").write_text(
            f'PATH="{programs}:$PATH"\nexport PYTHONPATH="{ROOT}"\nexport FT_HOST=127.0.0.1:0\n'
        )

    def shell(self, command: str) -> str:
        """Run it in a login shell that knows nothing but HOME; returns what it printed."""
        done = subprocess.run(
            ["bash", "--login", "-c", command],
            env=self.environ,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S * 2,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def systemctl(self, *words: str) -> str:
        """What `systemctl --user` answers."""
        done = subprocess.run(
            ["systemctl", "--user", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        return done.stdout.strip()

    def service(self) -> dict[str, str]:
        """State of the unit."""
        names = "MainPID,ActiveState,SubState,NRestarts"
        return dict(
            line.split("=", 1) for line in self.systemctl("show", "ft", "-p", names).splitlines()
        )

    def manager_pid(self) -> int:
        """Process of the manager that answers for this home; 0 for none."""
        with contextlib.suppress(OSError, ValueError):
            return int(json.loads(self.record.read_text())["pid"])
        return 0

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """From a login to the logout: the service manager runs, and starts what is enabled."""
        process = subprocess.Popen(
            ["/lib/systemd/systemd", "--user"],
            env=self.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            states = ("running", "degraded")
            wait_until(lambda: self.systemctl("is-system-running") in states, "no systemd")
            yield
        finally:
            self.systemctl("exit")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WITHIN_S)
            process.kill()


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    """Poll it.   Raises: AssertionError after a minute."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


def play(login: Login, model: Path) -> dict[str, Any]:
    """Enable, ask from a fresh shell, kill the manager, log in again, disable."""
    seen: dict[str, Any] = {}
    with login.session():
        seen["enabled"] = login.shell("ft autostart enable 2>&1")
        first = login.service()
        seen["first"] = first
        seen["answers_by_service"] = login.manager_pid() == int(first["MainPID"])
        recipe = login.home / "Modelfile"
        recipe.write_text(f"FROM {model}\nPARAMETER temperature 0\nPARAMETER num_predict 4\n")
        login.shell(f"ft create tiny -f {recipe}")
        seen["answer"] = login.shell(ASK)
        seen["same_manager"] = login.manager_pid() == int(first["MainPID"])
        os.kill(int(first["MainPID"]), signal.SIGKILL)
        wait_until(lambda: login.service()["NRestarts"] == "1", "not started again")
        wait_until(lambda: login.service()["ActiveState"] == "active", "not up again")
        seen["answer_after_kill"] = login.shell(ASK)
        seen["status"] = login.shell("ft autostart status 2>&1")
    seen["after_logout"] = alive(login.manager_pid())
    with login.session():
        wait_until(lambda: login.service()["ActiveState"] == "active", "not started at login")
        second = int(login.service()["MainPID"])
        seen["started_at_login"] = second == login.manager_pid() != int(first["MainPID"])
        seen["answer_at_login"] = login.shell(ASK)
        seen["disabled"] = login.shell("ft autostart disable 2>&1")
        seen["after_disable"] = alive(second)
    return seen


def alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0


def main() -> int:
    """Play it; the namespace is the caller's."""
    home, model = Path(sys.argv[1]), Path(sys.argv[2])
    booted = Path("/run/systemd")
    booted.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(booted)], check=True)
    (booted / "system").mkdir()  # what sd_booted(3) looks for
    sys.stdout.write(json.dumps(play(Login(home), model)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

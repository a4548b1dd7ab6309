"""macOS: a launchd agent of the user.

Written from launchd.plist(5) and launchctl(1); made and checked as text, not yet run on a Mac.
"""

from __future__ import annotations

import plistlib
from pathlib import Path

from ftman import files
from ftman.autostart.base import AutostartError, Runner, ServiceCall, Status, run

LABEL = "org.ftman.serve"


def agent_text(call: ServiceCall, log_path: Path) -> str:
    """The property list. ExitTimeOut is longer than draining the engines takes."""
    agent: dict[str, object] = {
        "Label": LABEL,
        "ProgramArguments": list(call.argv),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": 30,
        "ProcessType": "Interactive",  # or the system slows its disk and CPU down
        "Umask": 0o077,
        "StandardOutPath": str(log_path),
        "StandardErrorPath": str(log_path),
    }
    if call.environ:
        agent["EnvironmentVariables"] = dict(call.environ)
    return plistlib.dumps(agent).decode()


class LaunchdAutostart:
    """`launchctl` in the user's GUI domain and one plist in ~/Library/LaunchAgents."""

    def __init__(
        self, call: ServiceCall, home: Path, log_path: Path, uid: int, runner: Runner = run
    ):
        self._call = call
        self._log_path = log_path
        self._domain = f"gui/{uid}"
        self._run = runner
        self.path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def text(self) -> str:
        return agent_text(self._call, self._log_path)

    def enable(self) -> str:
        files.make_dir(self._log_path.parent)
        files.write_atomic(self.path, self.text().encode())
        self._run(["launchctl", "bootout", f"{self._domain}/{LABEL}"])  # fails if it was not there
        answer = self._run(["launchctl", "bootstrap", self._domain, str(self.path)])
        if answer.code != 0:
            raise AutostartError(
                f"launchctl did not take {self.path}: {answer.text}",
                hint="Log in at the screen (not only by ssh) and try again.",
            )
        return f"ft starts at login (launchd agent {self.path})"

    def disable(self) -> str:
        if not self.path.exists():
            return "ft does not start at login; nothing to do"
        self._run(["launchctl", "bootout", f"{self._domain}/{LABEL}"])
        files.unlink(self.path)
        return "ft no longer starts at login"

    def status(self) -> Status:
        answer = self._run(["launchctl", "print", f"{self._domain}/{LABEL}"])
        running = "state = running" in answer.text
        return Status(self.path.exists(), running, str(self.path))

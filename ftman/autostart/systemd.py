"""Linux: a systemd user unit.

The text is for `systemctl --user`; no root is needed and nothing outside the home is written.
"""

from __future__ import annotations

from pathlib import Path

from ftman import files
from ftman.autostart.base import AutostartError, Runner, ServiceCall, Status, run, user_id

UNIT = "ft.service"
WATCHDOG_S = 60
_LINGER = "To have it run without a login as well: loginctl enable-linger"


def unit_text(call: ServiceCall) -> str:
    """The unit file.

    Source: systemd.service(5), systemd.exec(5). KillMode=process: the manager alone gets SIGTERM
    and drains its engines itself, and when it crashes its engines live on for the next manager to
    take over. TimeoutStopSec is longer than draining takes. Type=notify: started is who answers;
    the watchdog is fed while the scheduler moves (notify.py). Only sandboxing that needs no extra
    rights and does not hinder just-in-time compiled kernels is used.
    """
    lines = [
        "[Unit]",
        "Description=ft model manager",
        "StartLimitIntervalSec=60",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=notify",
        "ExecStart=" + " ".join(_quoted(word, command=True) for word in call.argv),
        *("Environment=" + _quoted(f"{name}={value}") for name, value in call.environ),
        "Restart=on-failure",
        "RestartSec=3",
        f"WatchdogSec={WATCHDOG_S}",
        "KillMode=process",
        "TimeoutStopSec=30",
        "NoNewPrivileges=yes",
        "LockPersonality=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "UMask=0077",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def _quoted(word: str, *, command: bool = False) -> str:
    """One word for a unit file: % starts a specifier everywhere, $ a variable in commands."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if command:
        word = word.replace("$", "$$")
    return f'"{word}"' if not word or any(char in word for char in " \t'\";\\") else word


class SystemdAutostart:
    """`systemctl --user` and one unit file below the config home."""

    def __init__(self, call: ServiceCall, config_home: Path, runner: Runner = run):
        self._call = call
        self._run = runner
        self.path = config_home / "systemd" / "user" / UNIT

    def text(self) -> str:
        return unit_text(self._call)

    def enable(self) -> str:
        self._need_user_manager()
        files.write_atomic(self.path, self.text().encode())
        self._must("daemon-reload")
        self._must("enable", UNIT)
        self._must("restart", UNIT)
        told = f"ft starts at login (systemd user unit {self.path})."
        return told if self._lingers() else f"{told} {_LINGER}"

    def disable(self) -> str:
        if not self.path.exists():
            return "ft does not start at login; nothing to do"
        self._need_user_manager()
        self._must("disable", "--now", UNIT)
        files.unlink(self.path)
        self._must("daemon-reload")
        return "ft no longer starts at login"

    def status(self) -> Status:
        enabled = self._run(["systemctl", "--user", "is-enabled", UNIT])
        active = self._run(["systemctl", "--user", "is-active", UNIT])
        if not self.path.exists():
            return Status(False, active.text == "active", str(self.path), "no unit file")
        detail = ""
        if files.read_bytes(self.path).decode("utf-8", "replace") != self.text():
            detail = "the unit differs from what this version would write: ft autostart enable"
        elif self._lingers() is False:
            detail = f"it ends with your last login. {_LINGER}"
        running = None if _no_manager(active.text) else active.text == "active"
        return Status(enabled.text == "enabled", running, str(self.path), detail)

    def _lingers(self) -> bool | None:
        """Whether the user's services run without a login; None where that cannot be told."""
        show = ["loginctl", "show-user", str(user_id()), "--property=Linger", "--value"]
        return {"yes": True, "no": False}.get(self._run(show).text)

    def _need_user_manager(self) -> None:
        answer = self._run(["systemctl", "--user", "show-environment"])
        if answer.code == 0:
            return
        raise AutostartError(
            f"systemd has no user session here, so ft cannot start at login: {answer.text}",
            hint="Log in directly rather than by su or sudo, or give your user a session of its "
            "own with: loginctl enable-linger; then try again. In a container, start "
            "`ft serve` as its command.",
        )

    def _must(self, *words: str) -> None:
        answer = self._run(["systemctl", "--user", *words])
        if answer.code != 0:
            raise AutostartError(
                f"systemctl --user {' '.join(words)} failed: {answer.text}",
                hint=f"See: journalctl --user -u {UNIT}\nA manager that was started by hand keeps "
                "the port and the store: end it with `ft shutdown`, then try again.",
            )


def _no_manager(text: str) -> bool:
    return "Failed to connect" in text or "not installed" in text

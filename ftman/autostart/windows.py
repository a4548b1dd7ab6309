"""Windows: a scheduled task of the user, at logon.

Written from the Task Scheduler schema (version 1.2); made and checked as text, not yet run there.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.sax.saxutils import escape

from ftman import files
from ftman.autostart.base import AutostartError, Runner, ServiceCall, Status, run

TASK = "ft"


def task_text(call: ServiceCall) -> str:
    """The task as XML.

    A task has no variables of its own: where some are carried, cmd sets them before it starts the
    manager. ExecutionTimeLimit PT0S: never ended for running long.
    """
    program, arguments = _command(call)
    return f"""<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>ft model manager</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Enabled>true</Enabled>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Hidden>true</Hidden>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>5</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{escape(program)}</Command>
      <Arguments>{escape(arguments)}</Arguments>
    </Exec>
  </Actions>
</Task>
"""


def _command(call: ServiceCall) -> tuple[str, str]:
    if not call.environ:
        return call.argv[0], subprocess.list2cmdline(call.argv[1:])
    for name, value in call.environ:
        if any(char in value for char in '"%'):
            raise AutostartError(
                f"{name} holds a quote or percent sign, which a scheduled task cannot carry",
                hint=f"Put the setting into config.toml instead and unset {name}.",
            )
    settings = "".join(f'set "{name}={value}" && ' for name, value in call.environ)
    return "cmd.exe", f'/d /s /c "{settings}{subprocess.list2cmdline(call.argv)}"'


class WindowsAutostart:
    """`schtasks` and one XML file in the state folder."""

    def __init__(self, call: ServiceCall, folder: Path, runner: Runner = run):
        self._call = call
        self._run = runner
        self.path = folder / "autostart.xml"

    def text(self) -> str:
        return task_text(self._call)

    def enable(self) -> str:
        files.write_atomic(self.path, self.text().encode("utf-16"))
        self._must("/Create", "/TN", TASK, "/XML", str(self.path), "/F")
        self._must("/Run", "/TN", TASK)
        return f"ft starts at login (scheduled task {TASK})"

    def disable(self) -> str:
        if self._run(["schtasks", "/Query", "/TN", TASK]).code != 0:
            return "ft does not start at login; nothing to do"
        self._run(["schtasks", "/End", "/TN", TASK])  # fails if it does not run
        self._must("/Delete", "/TN", TASK, "/F")
        files.unlink(self.path)
        return "ft no longer starts at login"

    def status(self) -> Status:
        answer = self._run(["schtasks", "/Query", "/TN", TASK, "/FO", "LIST"])
        # Whether it runs is told in the system's language, so it is passed on as it is.
        detail = " ".join(answer.text.split()) if answer.code == 0 else ""
        return Status(answer.code == 0, None, str(self.path), detail)

    def _must(self, *words: str) -> None:
        answer = self._run(["schtasks", *words])
        if answer.code != 0:
            raise AutostartError(
                f"schtasks {' '.join(words[:3])} failed: {answer.text}",
                hint="Run it from a terminal of your own user, not elevated.",
            )

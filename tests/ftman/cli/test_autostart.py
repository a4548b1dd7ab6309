"""`ft autostart` over a stand-in for the system's own service manager."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from ftman.autostart.base import AutostartError, Status
from ftman.cli.commands.autostart import act
from ftman.cli.output import Output
from ftman.cli.session import Session
from ftman.config import load_config
from tests.ftman.cli.conftest import Cli


class FakeAutostart:
    path = Path("/etc/x")

    def __init__(self) -> None:
        self.done: list[str] = []

    def text(self) -> str:
        return "[Unit]\n"

    def enable(self) -> str:
        self.done.append("enable")
        return "it starts"

    def disable(self) -> str:
        self.done.append("disable")
        return "it does not"

    def status(self) -> Status:
        return Status(True, None, "/etc/x", "old text")


def run(action: str, *, as_json: bool = False) -> tuple[FakeAutostart, str, str]:
    fake, stdout, stderr = FakeAutostart(), io.StringIO(), io.StringIO()
    session = Session(load_config(), Output(stdout, stderr, as_json=as_json), io.StringIO())
    assert act(fake, action, session) == 0
    return fake, stdout.getvalue(), stderr.getvalue()


@pytest.mark.parametrize(("action", "told"), [("enable", "it starts"), ("disable", "it does not")])
def test_changes_are_told_on_stderr(action: str, told: str) -> None:
    fake, stdout, stderr = run(action)
    assert fake.done == [action]
    assert (stdout, stderr) == ("", f"{told}\n")
    assert json.loads(run(action, as_json=True)[1]) == {"action": action, "message": told}


def test_status_and_print_change_nothing() -> None:
    fake, stdout, _ = run("status")
    assert stdout == "enabled   running cannot be told   /etc/x   old text\n"
    assert fake.done == []
    assert json.loads(run("status", as_json=True)[1])["running"] is None
    assert run("print")[1] == "[Unit]\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the text of this system's own unit")
def test_print_shows_the_real_unit_with_this_shells_settings(ft: Cli, tmp_path: Path) -> None:
    done = ft("autostart", "print")
    assert done.code == 0
    assert "-m ftman serve" in done.out
    assert f"FT_HOME={tmp_path / 'ft-home'}" in done.out


def test_a_refusal_is_an_ordinary_error(ft: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AutostartError("no session here", hint="do this")

    monkeypatch.setattr("ftman.cli.commands.autostart.autostart_here", refuse)
    done = ft("autostart", "enable")
    assert (done.code, done.err) == (1, "error: no session here\n  do this\n")

"""Start at login: texts against golden files, and what enable and disable do, in which order."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ftman.autostart.base import Answer, Autostart, AutostartError, ServiceCall, run, service_call
from ftman.autostart.choose import autostart_here
from ftman.autostart.launchd import LaunchdAutostart, agent_text
from ftman.autostart.systemd import SystemdAutostart, unit_text
from ftman.autostart.windows import WindowsAutostart, task_text
from ftman.config import Paths

GOLDEN = Path(__file__).parent / "golden"
ARGV = ("/opt/ft env/bin/python", "-m", "ftman", "serve")
PLAIN = ServiceCall(("/usr/bin/python3", "-m", "ftman", "serve"))
CARRIED = ServiceCall(ARGV, (("FT_HOME", "/data/my models"), ("FT_HOST", "127.0.0.1:11500")))


class FakeRunner:
    """Remembers commands; answers them by their words, else with success."""

    def __init__(self, answers: dict[str, Answer] | None = None):
        self.answers = answers or {}
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[str]) -> Answer:
        command = " ".join(argv)
        self.commands.append(command)
        found = (answer for words, answer in self.answers.items() if words in command)
        return next(found, Answer(0, ""))


TEXTS = {
    "plain.service": unit_text(PLAIN),
    "carried.service": unit_text(CARRIED),
    "plain.plist": agent_text(PLAIN, Path("/home/me/ft/logs/serve.log")),
    "carried.plist": agent_text(CARRIED, Path("/home/me/ft/logs/serve.log")),
    "plain.xml": task_text(PLAIN),
    "carried.xml": task_text(CARRIED),
}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_text_is_what_the_golden_file_says(name: str) -> None:
    assert TEXTS[name] == (GOLDEN / name).read_text("utf-8")


def test_unit_escapes_what_systemd_would_expand() -> None:
    call = ServiceCall(("/a b/py$thon", "-m", "ftman"), (("FT_HOME", '/100% "x" \\ $y'),))
    text = unit_text(call)
    assert 'ExecStart="/a b/py$$thon" -m ftman\n' in text
    assert 'Environment="FT_HOME=/100%% \\"x\\" \\\\ $y"\n' in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "ft.service"
    python = tmp_path / "with space"
    python.symlink_to("/bin/true")
    call = ServiceCall((str(python), "-m", "ftman", "serve"), CARRIED.environ)
    unit.write_text(unit_text(call))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "ft.service" in line]
    assert ours == []


def test_plist_and_xml_are_well_formed_and_hold_the_call() -> None:
    agent = plistlib.loads(TEXTS["carried.plist"].encode())
    assert agent["ProgramArguments"] == list(ARGV)
    assert agent["EnvironmentVariables"] == dict(CARRIED.environ)
    task = ElementTree.fromstring(TEXTS["carried.xml"].encode("utf-16"))
    space = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    arguments = task.findtext(f".//{space}Arguments")
    assert arguments is not None
    assert '"/opt/ft env/bin/python" -m ftman serve' in arguments
    assert 'set "FT_HOME=/data/my models"' in arguments


def test_call_is_absolute_and_carries_settings_but_no_secrets() -> None:
    environ = {"FT_HOME": "/x", "HF_TOKEN": "secret", "PATH": "/bin", "FT_HOST": ""}
    call = service_call(environ, "/usr/bin/python3")
    assert call == ServiceCall(("/usr/bin/python3", "-m", "ftman", "serve"), (("FT_HOME", "/x"),))


@pytest.mark.parametrize(
    "name", ["FT_PARK_DISK", "FT_ACTIVATIONS", "FT_PREPARE_ENGINE", "all_proxy"]
)
def test_call_carries_whatever_the_manager_would_read(name: str) -> None:
    assert (name, "x") in service_call({name: "x", "FT_API_KEY": "secret"}).environ
    assert "secret" not in str(service_call({name: "x", "FT_API_KEY": "secret"}))


def test_variable_with_a_newline_is_refused_by_name() -> None:
    with pytest.raises(AutostartError, match="FT_HOME"):
        service_call({"FT_HOME": "/x\nExecStart=/bin/evil"})


def test_systemd_enable_writes_the_unit_then_starts_it(tmp_path: Path) -> None:
    runner = FakeRunner()
    autostart = SystemdAutostart(CARRIED, tmp_path, runner)
    line = autostart.enable()
    assert autostart.path.read_text() == autostart.text()
    assert runner.commands[1:4] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable ft.service",
        "systemctl --user restart ft.service",
    ]
    assert "enable-linger" in line


def test_lingering_is_advised_only_where_it_is_off(tmp_path: Path) -> None:
    answers = {"is-active": Answer(0, "active"), "show-user": Answer(0, "no")}
    off = SystemdAutostart(PLAIN, tmp_path, FakeRunner(answers))
    assert "enable-linger" in off.enable()
    assert "enable-linger" in off.status().detail
    on = SystemdAutostart(PLAIN, tmp_path, FakeRunner(answers | {"show-user": Answer(0, "yes")}))
    assert "enable-linger" not in on.enable()
    assert on.status().detail == ""


def test_systemd_without_a_user_session_says_so_and_writes_nothing(tmp_path: Path) -> None:
    no_bus = Answer(1, "Failed to connect to bus: No medium found")
    autostart = SystemdAutostart(PLAIN, tmp_path, FakeRunner({"show-environment": no_bus}))
    with pytest.raises(AutostartError, match="Failed to connect to bus") as caught:
        autostart.enable()
    assert "loginctl enable-linger" in caught.value.hint
    assert not autostart.path.exists()


def test_systemd_command_that_fails_is_named(tmp_path: Path) -> None:
    runner = FakeRunner({"restart": Answer(1, "Job failed")})
    with pytest.raises(AutostartError, match=r"restart ft\.service failed: Job failed") as caught:
        SystemdAutostart(PLAIN, tmp_path, runner).enable()
    assert "journalctl" in caught.value.hint


def test_systemd_status_tells_enabled_running_and_out_of_date(tmp_path: Path) -> None:
    runner = FakeRunner({"is-enabled": Answer(0, "enabled"), "is-active": Answer(0, "active")})
    autostart = SystemdAutostart(PLAIN, tmp_path, runner)
    assert not autostart.status().enabled
    autostart.enable()
    status = autostart.status()
    assert (status.enabled, status.running, status.detail) == (True, True, "")
    autostart.path.write_text("[Unit]\n")
    assert "ft autostart enable" in autostart.status().detail


def _systems(folder: Path, runner: FakeRunner) -> list[Autostart]:
    return [
        SystemdAutostart(PLAIN, folder, runner),
        LaunchdAutostart(PLAIN, folder, folder / "logs" / "serve.log", 501, runner),
        WindowsAutostart(PLAIN, folder, runner),
    ]


@pytest.mark.parametrize("index", range(3), ids=["systemd", "launchd", "windows"])
def test_enable_then_disable_leaves_no_file(tmp_path: Path, index: int) -> None:
    autostart = _systems(tmp_path, FakeRunner())[index]
    assert "starts at login" in autostart.enable()
    assert autostart.path.exists()
    assert "no longer" in autostart.disable()
    assert not autostart.path.exists()


@pytest.mark.parametrize("index", range(3), ids=["systemd", "launchd", "windows"])
def test_disable_without_enable_is_no_error(tmp_path: Path, index: int) -> None:
    runner = FakeRunner({"/Query": Answer(1, "not found")})
    assert "nothing to do" in _systems(tmp_path, runner)[index].disable()


@pytest.mark.parametrize("index", [1, 2], ids=["launchd", "windows"])
def test_refusal_of_the_system_has_a_next_step(tmp_path: Path, index: int) -> None:
    no = Answer(5, "Input/output error")
    runner = FakeRunner({"bootstrap": no, "/Create": no})
    with pytest.raises(AutostartError, match="Input/output error") as caught:
        _systems(tmp_path, runner)[index].enable()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("system", "kind"),
    [("linux", SystemdAutostart), ("darwin", LaunchdAutostart), ("win32", WindowsAutostart)],
)
def test_each_system_gets_its_own_way(tmp_path: Path, system: str, kind: type) -> None:
    paths = Paths(tmp_path, tmp_path / "models")
    assert isinstance(autostart_here(paths, {}, system=system, runner=FakeRunner()), kind)


def test_other_systems_are_told_what_is_built(tmp_path: Path) -> None:
    with pytest.raises(AutostartError, match="freebsd13; built: linux"):
        autostart_here(Paths(tmp_path, tmp_path), {}, system="freebsd13")


def test_real_runner_reports_code_text_and_missing_programs() -> None:
    assert run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == Answer(3, "out\nerr")
    assert run(["/nowhere/tool"]).code == 127

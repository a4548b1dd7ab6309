"""`make clients`, agents part: install the pinned agents, let each play the scene, print a table.

`python -m tests.clients.agents.run [--record] [--only NAME ...]`. Exit status 1 when one failed.
Each agent has a home of its own, a manager with the scripted engine, and two minutes a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.clients.agents import scene
from tests.clients.agents.agents import AGENTS, Agent
from tests.clients.agents.install import install
from tests.clients.agents.play import play
from tests.clients.agents.running import WORK, staged, version_of
from tests.clients.install import InstallError
from tests.clients.recorder import Exchange, Recording, save
from tests.e2e.processes import ROOT
from tests.fakes.script import FakeScript

FIXTURES = ROOT / "tests" / "data" / "clients"


@dataclass(frozen=True)
class Result:
    """How one agent did; `words` is what was wrong."""

    agent: Agent
    version: str
    requests: int
    seconds: float
    words: str = ""


def try_agent(agent: Agent, root: Path, record: bool) -> Result:
    """Play the scene with one agent."""
    started = time.monotonic()
    version = version_of(agent)
    requests, words = 0, ""
    try:
        with staged(agent, _script(agent, root / WORK), root) as stage:
            play(stage)
            requests = len(stage.exchanges)
            if record:
                kept = [_at_home(exchange, root) for exchange in stage.exchanges]
                save(Recording(agent.name, version, kept), FIXTURES)
    except (AssertionError, subprocess.SubprocessError, OSError) as error:
        words = f"{type(error).__name__}: {error}"
    return Result(agent, version, requests, time.monotonic() - started, words)


def _at_home(exchange: Exchange, root: Path) -> Exchange:
    """The exchange with the same folder names in every recording."""
    body = json.dumps(exchange.body).replace(str(root), "/home/user")
    return replace(exchange, body=json.loads(body))


def _script(agent: Agent, work: Path) -> FakeScript:
    if agent.read is None or agent.write is None:
        return scene.by_words()
    return scene.by_tools(agent.read(work), agent.write(work))


def chosen(only: Sequence[str]) -> list[Agent]:
    """The agents named, or all."""
    known = [agent.name for agent in AGENTS]
    for name in only:
        if name not in known:
            sys.exit(f"no agent {name!r}; there are: {', '.join(known)}")
    return [agent for agent in AGENTS if not only or agent.name in only]


def say(line: str) -> None:
    """One line of the report."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Install, play, print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make clients")
    parser.add_argument("--record", action="store_true", help="write tests/data/clients anew")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args(arguments)
    agents = chosen(options.only)
    try:
        say("clients: installing the agents")
        install(agents)
    except InstallError as error:
        say(f"clients: {error}")
        return 1
    results = []
    for agent in agents:
        with tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True) as folder:
            results.append(try_agent(agent, Path(folder), options.record))
        if results[-1].words:
            say(f"\n{agent.name}:\n{results[-1].words}\n")
    say(f"{'agent':<18} {'version':<10} {'requests':>8} {'s':>5}  result")
    for one in results:
        verdict = "FAILED" if one.words else "ok"
        name = f"{one.agent.name:<18} {one.version:<10}"
        say(f"{name} {one.requests:>8} {one.seconds:>5.0f}  {verdict}")
    return 1 if any(one.words for one in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

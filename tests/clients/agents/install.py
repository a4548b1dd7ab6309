"""Puts the pinned agents into build/clients; a second time it does nothing.

They share one folder with Node itself; aider is a Python program with an environment of its own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.clients.agents.agents import Agent
from tests.clients.agents.running import BUILD, NODE_BIN
from tests.clients.install import InstallError, Places, node_environment, run
from tests.clients.pins import NODE


def install(agents: Sequence[Agent]) -> None:
    """Everything these agents need.   Raises: InstallError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    packages = sorted({agent.package for agent in agents if not agent.python})
    if packages:
        _with_npm(packages)
    for package in sorted({agent.package for agent in agents if agent.python}):
        _with_pip(package)


def _with_npm(packages: list[str]) -> None:
    if shutil.which("npm") is None:
        raise InstallError("npm is missing; install Node.js (any version, it brings npm)")
    environ = node_environment(Places(BUILD, BUILD))
    npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(BUILD)]
    if not (NODE_BIN / "node").exists():
        run([*npm, NODE])
    missing = [package for package in packages if not _mark(package).exists()]
    if not missing:
        return
    run([*npm, NODE, *packages], environ)
    # npm runs no scripts of packages it was not told to trust; Claude Code needs this one, which
    # only moves files it has.
    claude = BUILD / "node_modules" / "@anthropic-ai" / "claude-code" / "install.cjs"
    if claude.exists():
        run([str(NODE_BIN / "node"), str(claude)], environ)
    for package in packages:
        _mark(package).touch()


def _with_pip(package: str) -> None:
    folder = BUILD / package.split("-")[0]
    if _mark(package).exists():
        return
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "install", package])
    _mark(package).touch()


def _mark(package: str) -> Path:
    return BUILD / f"done-{package.strip('@').replace('/', '-')}"

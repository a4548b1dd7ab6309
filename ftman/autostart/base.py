"""What starting at login means on every system: a text, a place, enable, disable, status.

Each system's file makes its text by a pure function; only `Runner` and ftman.files touch the
machine, so that tests need neither.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ftman.config import FALL_BACKS, variables
from ftman.errors import FtmanError

CARRIED = (
    "FT_HOME",
    "FT_CONFIG",
    *variables(),
    *FALL_BACKS.values(),
    "XDG_DATA_HOME",
    "HF_HOME",
    "HF_ENDPOINT",
    *("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("https_proxy", "http_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Variables that are written into the service when they are set in the shell that enables it.

Without them the service would look at another store than the shell, or run with other settings.
Secrets are not carried.
"""


class AutostartError(FtmanError):
    """Starting at login cannot be set up here; the hint says what to do instead."""

    code = "autostart"
    status = 500


@dataclass(frozen=True)
class ServiceCall:
    """How the manager is started: program and arguments, and the variables it needs."""

    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Status:
    """enabled: starts at login. running: None when it cannot be told."""

    enabled: bool
    running: bool | None
    path: str
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """Result of a command that was run."""

    code: int
    text: str


class Runner(Protocol):
    """Runs one system command."""

    def __call__(self, argv: Sequence[str]) -> Answer:
        """Run to the end. A program that is missing answers with code 127."""


class Autostart(Protocol):
    """One system's way. Changing methods return a line for the user.   Raises: AutostartError."""

    path: Path

    def text(self) -> str:
        """What `enable` would write."""

    def enable(self) -> str:
        """Start now and at every login; an older version is replaced."""

    def disable(self) -> str:
        """Stop starting at login, and stop what was started that way."""

    def status(self) -> Status:
        """What is set up now."""


def service_call(environ: Mapping[str, str], executable: str = sys.executable) -> ServiceCall:
    """The call for this interpreter, with the variables of `environ` that matter."""
    carried = tuple((name, environ[name]) for name in CARRIED if environ.get(name))
    for name, value in carried:
        if any(ord(char) < 32 for char in value):
            raise AutostartError(
                f"{name} holds a control character and cannot be written into a service",
                hint=f"Unset {name} or give it a plain value.",
            )
    return ServiceCall((str(Path(executable).absolute()), "-m", "ftman", "serve"), carried)


def run(argv: Sequence[str]) -> Answer:
    """The real Runner: at most 30 s."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=False,
        )
    except FileNotFoundError:
        return Answer(127, f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        return Answer(124, f"{argv[0]} did not answer within 30 s")
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace").strip())


def user_id() -> int:
    """The numeric user id; 0 where there is none."""
    return os.getuid() if hasattr(os, "getuid") else 0

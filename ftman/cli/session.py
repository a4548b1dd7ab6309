"""What every verb is given: settings, output, and the manager when it asks for it."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ftman.cli.output import Output
from ftman.config import Config

if TYPE_CHECKING:
    from ftman.cli.client import ManagerClient


@dataclass(frozen=True)
class Session:
    """One run of the command."""

    config: Config
    out: Output
    stdin: TextIO

    def manager(self) -> ManagerClient:
        """A client of the manager, which is started if it does not run.   Raises: FtmanError."""
        # Loaded here so that verbs without a manager, and help, never pay for httpx.
        from ftman.cli.manager import finder

        return finder(self.config, self.out).connect()

    def running_manager(self) -> ManagerClient | None:
        """A client of the manager if one runs; starts nothing.

        Raises: FtmanError; NetworkError when the one of another machine does not answer.
        """
        from ftman.cli.manager import finder

        found = finder(self.config, self.out)
        url = found.running()
        return found.client(url) if url else None


def make_session(config: Config, out: Output) -> Session:
    """A session on the process's own stdin."""
    return Session(config, out, sys.stdin or io.StringIO())

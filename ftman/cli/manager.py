"""Find the manager of this user, or start it in the background.

Nothing but a `GET /` is ever sent to a server that is not ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ftman import files, log
from ftman.cli.client import ManagerClient, is_local, probe
from ftman.cli.output import Output
from ftman.cli.units import human_bytes
from ftman.clock import SYSTEM, Clock, pause
from ftman.config import DEFAULT_PORT, FALL_BACKS, Config
from ftman.errors import ConflictError, FtmanError, NetworkError
from ftman.folders import require_folders

START_LIMIT_S = 15.0
POLL_S = 0.1
PORTS_TRIED = 20
STRANGERS = {"ollama": "Ollama", "other": "another server"}


@dataclass(frozen=True)
class Finder:
    """Looks for, and starts, the manager that `config` describes."""

    config: Config
    out: Output
    host_given: bool
    clock: Clock = SYSTEM

    def connect(self) -> ManagerClient:
        """A client of our manager, started if need be.   Raises: FtmanError saying what to do."""
        return self.client(self.running() or self._start())

    def client(self, url: str) -> ManagerClient:
        """A client of a manager that was found, with the key that opens it."""
        key = self.config.api_key
        if not key and self._recorded_value().get("url") == url:
            key = str(self._recorded_value().get("token") or "")
        return ManagerClient(url, key=key, certificate=self._certificate(url))

    def running(self) -> str:
        """URL of our running manager, "" when there is none here.

        Raises: ConflictError; NetworkError when another machine is asked for and does not answer.
        """
        found = self._probe(self.config.url)
        if found == "ft":
            return self.config.url
        if found and self.host_given:
            raise self._foreign(found)
        self._require_local()
        return self._recorded()

    def _require_local(self) -> None:
        if not is_local(self.config.url):
            raise NetworkError(
                f"no ft manager answers at {self.config.url}, and it is not on this machine",
                hint="Start it there: ft serve\nor unset FT_HOST to use one here.",
            )

    def _recorded(self) -> str:
        url = str(self._recorded_value().get("url") or "")
        return url if url and is_local(url) and self._probe(url) == "ft" else ""

    def _recorded_value(self) -> dict[str, str]:
        """What the manager of this store wrote down about itself; {} when there is nothing."""
        try:
            value = json.loads(files.read_bytes(self.config.paths.run / "manager.json", limit=4096))
            address, token = str(value["address"]), str(value.get("token") or "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        url = address if "://" in address else f"http://{address}"
        url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        return {"url": url, "token": token}

    def _probe(self, url: str) -> str:
        return probe(url, self._certificate(url))

    def _certificate(self, url: str) -> Path | None:
        """Our own certificate proves our own manager; elsewhere the usual authorities do."""
        return self.config.tls_cert if is_local(url) and url.startswith("https:") else None

    def _start(self) -> str:
        require_folders(self.config)
        address = self._free_address()
        log_path = self.config.paths.logs / log.NAME
        self.out.note(f"starting the ft manager in the background (log: {log_path})")
        process = self._spawn(address)
        limit = self.clock.monotonic() + START_LIMIT_S
        while self.clock.monotonic() < limit:
            ended = process.poll() is not None
            scheme = self.config.url.partition(":")[0]
            for url in (f"{scheme}://{address}", self._recorded()):
                if url and self._probe(url) == "ft" and self._is_ready(url):
                    return url
            if ended:
                break
            pause(POLL_S)
        why, steps = self._last_words(ended)
        hint = "\n".join([*(steps or ["Start it by hand to see it: ft serve"]), f"Log: {log_path}"])
        raise FtmanError(f"the ft manager did not start: {why}", hint=hint, code="manager_start")

    def _free_address(self) -> str:
        found = self._probe(self.config.url)
        if not found:
            return self.config.address
        if self.host_given:
            raise self._foreign(found)
        for port in range(DEFAULT_PORT + 1, DEFAULT_PORT + 1 + PORTS_TRIED):
            if _is_free(self.config.host, port):
                self.out.note(
                    f"port {self.config.port} is taken by {STRANGERS.get(found, found)}; "
                    f"ft uses port {port}"
                )
                return f"{self.config.host}:{port}"
        raise ConflictError(
            f"ports {DEFAULT_PORT} to {DEFAULT_PORT + PORTS_TRIED} are all taken",
            hint="Choose one: FT_HOST=127.0.0.1:<port> ft serve",
        )

    def _spawn(self, address: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "ftman", "serve", "--address", address]
        path = self.config.paths.logs / log.NAME
        with contextlib.suppress(OSError):
            files.rotate_log(path, log.LIMIT_BYTES, log.KEPT)
        with files.open_log(path) as output:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # -m looks for modules in the working folder first: it must be our own.
                cwd=Path(__file__).parents[2],
                start_new_session=os.name == "posix",
                creationflags=getattr(subprocess, "DETACHED_PROCESS", 0),
            )

    def _is_ready(self, url: str) -> bool:
        try:
            with self.client(url) as client:
                client.get("/api/ft/status")
        except FtmanError:
            return False
        return True

    def _last_words(self, ended: bool) -> tuple[str, list[str]]:
        """Why it did not start, and what its own error says to do next."""
        try:
            data = files.read_bytes(self.config.paths.logs / log.NAME)
        except OSError as error:
            return f"its log cannot be read ({error.strerror})", []
        lines = data.decode("utf-8", "replace").strip().splitlines()[-20:]
        errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
        if errors:
            steps = takewhile(lambda line: line.startswith("  "), lines[errors[-1] + 1 :])
            return lines[errors[-1]].removeprefix("error: "), [line[2:] for line in steps]
        if lines or not ended:
            return lines[-1] if lines else f"it did not answer in {START_LIMIT_S:.0f} s", []
        free = human_bytes(files.free_bytes(self.config.paths.logs))
        return f"it ended and wrote nothing into its log, whose disk has {free} free", []

    def _foreign(self, found: str) -> ConflictError:
        return ConflictError(
            f"{STRANGERS.get(found, found)} answers at {self.config.url} (FT_HOST), not ft",
            hint="Stop it, or give ft another port: FT_HOST=127.0.0.1:11435 ft serve\n"
            "Without FT_HOST, ft finds its own manager by itself.",
            code="foreign_server",
        )


def finder(config: Config, out: Output) -> Finder:
    """A Finder that knows whether the address was chosen for ft; Ollama's variable is a wish."""
    chosen = config.address != f"127.0.0.1:{DEFAULT_PORT}"
    said_by = config.said_by.get("host", "")
    if said_by == FALL_BACKS["host"] and is_local(config.url):
        return Finder(config, out, False)
    return Finder(config, out, chosen or said_by == "FT_HOST")


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe_socket:
        try:
            probe_socket.bind((host, port))
        except OSError:
            return False
    return True

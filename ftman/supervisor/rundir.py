"""What an engine leaves on disk while it runs: private run folder, token, record, log.

Only names and bytes live here; whether a recorded process is alive is asked in adopt.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftman import files
from ftman.config import Paths, engine_environment
from ftman.log import KEPT, LIMIT_BYTES
from ftman.supervisor.policy_events import EngineSpec

log = logging.getLogger(__name__)

SOCKET_PATH_LIMIT_BYTES = 100
_SOCKET = "engine.sock"
_FOLDER = re.compile(r"e-[0-9a-f]{8}")
_TAIL_BYTES = 4096
_EVERYDAY = re.compile(r" (INFO|DEBUG) ")


@dataclass(frozen=True)
class RunFolder:
    """The private place of one engine. address: unix:PATH, or tcp:127.0.0.1:0 = engine's choice."""

    run_id: str
    folder: Path
    address: str
    token_path: Path
    token: str

    def remove(self) -> None:
        """Delete the folder and, where it lies elsewhere, the socket."""
        files.remove_tree(self.folder)
        if self.address.startswith("unix:"):
            socket = Path(self.address.removeprefix("unix:"))
            if socket.parent != self.folder:
                files.unlink(socket)


def make_run_folder(paths: Paths, *, unix: bool = os.name == "posix") -> RunFolder:
    """Create the folder and the token file.   Raises: OSError."""
    run_id = f"e-{secrets.token_hex(4)}"
    folder = paths.run / run_id
    token = secrets.token_hex(16)
    token_path = folder / "token"
    try:
        files.make_dir(folder)
        files.write_atomic(token_path, token.encode())
    except OSError:
        with contextlib.suppress(OSError):
            files.remove_tree(folder)
        raise
    address = _choose_address(folder, run_id) if unix else "tcp:127.0.0.1:0"
    return RunFolder(run_id, folder, address, token_path, token)


def _choose_address(folder: Path, run_id: str) -> str:
    socket = folder / _SOCKET
    if len(os.fsencode(socket)) > SOCKET_PATH_LIMIT_BYTES:
        short = _short_folder()
        if short is None:
            return "tcp:127.0.0.1:0"
        socket = short / f"{run_id}.sock"
    return f"unix:{socket}"


def _short_folder() -> Path | None:
    """A private folder with a short name, where the store's own path is too long for a socket."""
    # Asked of no library: those that look for a temporary folder try it out with a file in it.
    user = os.getuid()
    session = Path(engine_environment().get("XDG_RUNTIME_DIR") or f"/run/user/{user}")
    places = [session / "ft"] if session.is_dir() else []
    for folder in (*places, Path(f"/tmp/ft-{user}")):
        if len(os.fsencode(folder)) + 20 > SOCKET_PATH_LIMIT_BYTES:
            continue
        try:
            files.make_dir(folder)
            status = folder.lstat()
        except OSError:
            continue
        # Anybody may create names in /tmp: only a folder of our own, closed to others, will do.
        private = status.st_uid == os.getuid() and not status.st_mode & 0o077
        if stat.S_ISDIR(status.st_mode) and private:
            return folder
    return None


@dataclass(frozen=True)
class EngineRecord:
    """What a later manager needs to find, prove and use this engine again.

    pid 0: written before the process was started; start "" likewise.
    """

    run: RunFolder
    spec: EngineSpec
    argv: tuple[str, ...]
    pid: int = 0
    start: str = ""
    address: str = ""

    def path(self, paths: Paths) -> Path:
        """Where this record lies."""
        return paths.run / "engines" / f"{self.run.run_id}.json"

    def write(self, paths: Paths) -> None:
        """Write it atomically. The token itself stays in its own file."""
        value = asdict(self)
        del value["run"]["token"]
        data = json.dumps(value, default=os.fspath, indent=1).encode()
        files.write_atomic(self.path(paths), data)

    def remove(self, paths: Paths) -> None:
        """Delete the record and everything else the engine had on disk, except its log."""
        files.unlink(self.path(paths))
        self.run.remove()


def read_records(paths: Paths) -> list[EngineRecord]:
    """All readable records; unreadable ones are deleted, for nothing can be proved by them."""
    found = []
    for path in sorted((paths.run / "engines").glob("*.json")):
        try:
            found.append(_parse_record(json.loads(files.read_bytes(path))))
        except (OSError, ValueError, KeyError, TypeError):
            files.unlink(path)
    return found


def _parse_record(value: dict[str, Any]) -> EngineRecord:
    run, spec = value["run"], value["spec"]
    token_path = Path(run["token_path"])
    token = files.read_bytes(token_path).decode() if token_path.exists() else ""
    return EngineRecord(
        run=RunFolder(run["run_id"], Path(run["folder"]), run["address"], token_path, token),
        spec=EngineSpec(**{**spec, "ftw_path": Path(spec["ftw_path"])}),
        argv=tuple(value["argv"]),
        pid=int(value["pid"]),
        start=str(value["start"]),
        address=str(value["address"]),
    )


def sweep_run_folders(paths: Paths, keep: set[str]) -> None:
    """Delete run folders that belong to no record in `keep` (run ids)."""
    if not paths.run.is_dir():
        return
    for folder in paths.run.iterdir():
        if _FOLDER.fullmatch(folder.name) and folder.name not in keep:
            files.remove_tree(folder)


def started(record: EngineRecord, pid: int, start: str) -> EngineRecord:
    """The record of an engine whose process now exists."""
    return replace(record, pid=pid, start=start)


def log_stem(name: str) -> str:
    """What the log of a model's engine is called, without its ending."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "engine"
    return f"engine-{plain[:120]}"


class EngineLog:
    """The log an engine's stderr appends to: rotated by size, read for the cause of a death."""

    def __init__(self, paths: Paths, name: str):
        self.path = paths.logs / f"{log_stem(name)}.log"
        self._from = 0

    def open_for(self, spawn: Callable[[int], None]) -> None:
        """Call `spawn` with a descriptor that appends to the log."""
        self.rotate()
        with files.open_log(self.path) as log:
            self._from = os.fstat(log.fileno()).st_size
            spawn(log.fileno())

    def rotate(self, limit_bytes: int = LIMIT_BYTES) -> None:
        """Keep the log and three older ones small; trouble is logged, for no engine ends by it."""
        try:
            if files.rotate_log(self.path, limit_bytes, KEPT):
                self._from = 0
        except OSError as error:
            log.warning("%s cannot be cut: %s", self.path, error)

    def tail(self, num_lines: int = 3) -> str:
        """The last lines this engine wrote, joined by " | "; "" when there are none.

        Lines of everyday logging say nothing about a death and are left out.
        """
        try:
            with files.open_read(self.path) as log:
                size = os.fstat(log.fileno()).st_size
                log.seek(max(min(self._from, size), size - _TAIL_BYTES))
                text = log.read(_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        lines = [line for line in lines if not _EVERYDAY.search(line)]
        return " | ".join(_printable(line)[:300] for line in lines[-num_lines:])


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in line)

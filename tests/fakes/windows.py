"""A manager that hands source files over in small windows and deletes what is done."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftengine.convert.protocol import Have

ROOT = Path(__file__).resolve().parent.parent.parent


class WindowFolder:
    """Cuts source files into window files on request; a done window is deleted at once."""

    def __init__(self, paths: Mapping[str, Path], folder: Path, window_bytes: int):
        self.paths = dict(paths)
        self.folder = folder
        self.window_bytes = window_bytes
        self.alive: dict[Path, tuple[str, int, int]] = {}
        self.done: dict[str, set[int]] = {name: set() for name in paths}
        self.served_bytes = 0
        self.peak_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)

    def serve(self, need: Mapping[str, Any]) -> list[Have]:
        """Windows of at most window_bytes that cover a need."""
        name, asked = need["file"], range(need["start"], need["end"])
        assert not self.done[name].intersection(asked), "asked for bytes it said are done"
        step = self.window_bytes
        return [self._cut(name, at, min(at + step, asked.stop)) for at in asked[::step]]

    def _cut(self, name: str, start: int, end: int) -> Have:
        """One window, somewhere inside a larger file."""
        with self.paths[name].open("rb") as reader:
            reader.seek(start)
            data = reader.read(end - start)
        path = self.folder / f"{len(list(self.folder.iterdir()))}-{self.served_bytes}-{name}"
        path.write_bytes(b"junk" + data)
        self.alive[path] = (name, start, end)
        self.served_bytes += len(data)
        self.peak_bytes = max(self.peak_bytes, sum(b - a for _, a, b in self.alive.values()))
        return Have(name, start, end, path, 4)

    def finish(self, done: Mapping[str, Any]) -> None:
        """Delete every window all of whose bytes are done."""
        self.done[done["file"]].update(range(done["start"], done["end"]))
        for path, (name, start, end) in list(self.alive.items()):
            if self.done[name].issuperset(range(start, end)):
                path.unlink()
                del self.alive[path]


class WindowLink:
    """A Link for the converter in this process."""

    def __init__(self, windows: WindowFolder):
        self.windows = windows
        self.messages: list[Mapping[str, Any]] = []
        self._waiting: list[Have] = []

    def send(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)
        if "need" in message:
            self._waiting += self.windows.serve(message["need"])
        if "done" in message:
            self.windows.finish(message["done"])

    def receive(self, *, block: bool) -> Have | None:
        if not self._waiting:
            assert not block, "the converter waits for a window it did not ask for"
            return None
        return self._waiting.pop(0)


def job_line(kind: str, paths: Mapping[str, Path], target: Path, derive: Any = None) -> bytes:
    """The job as the manager writes it."""
    listed = [
        {"name": name, "bytes": path.stat().st_size, "sha256": None} for name, path in paths.items()
    ]
    job = {"source": kind, "files": listed, "target": str(target), "derive": derive, "name": "t:1"}
    return json.dumps({"job": job}).encode() + b"\n"


def start_converter(
    command: str = "run", *, faults: str = "", limit_bytes: int = 0
) -> subprocess.Popen[bytes]:
    """The real child process; limit_bytes bounds the size of any file it writes."""
    arguments = [sys.executable, "-m", "ftengine.convert", command]
    if limit_bytes:
        code = (
            "import resource, runpy, sys; "
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes})); "
            f"sys.argv = ['convert', {command!r}]; "
            "runpy.run_module('ftengine.convert', run_name='__main__', alter_sys=True)"
        )
        arguments = [sys.executable, "-c", code]
    return subprocess.Popen(
        arguments,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "FT_FAULTS": faults},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def talk(
    process: subprocess.Popen[bytes], job: bytes, windows: WindowFolder
) -> list[dict[str, Any]]:
    """Serve a converter until it ends; returns all its messages."""
    assert process.stdin is not None
    assert process.stdout is not None
    messages = []
    with process:
        _write(process, job)
        for line in process.stdout:
            message = json.loads(line)
            messages.append(message)
            if "need" in message:
                for have in windows.serve(message["need"]):
                    _write(process, _have_line(have))
            if "done" in message:
                windows.finish(message["done"])
            if "result" in message or "error" in message:
                break
        with contextlib.suppress(BrokenPipeError):  # what a killed one did not read any more
            process.stdin.close()
    return messages


def _have_line(have: Have) -> bytes:
    value = {**vars(have), "path": str(have.path)}
    return json.dumps({"have": value}).encode() + b"\n"


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        pass

"""A disk that loses power: what ftman.files wrote is recorded, and what may be left is replayed.

`recording(root, log)` notes every step of the file layer below a folder, of this process; as a
program it does so for a module: `python -m tests.fakes.lost_writes ROOT LOG MODULE ARGS...`, so
that the steps of a manager and of its converter stand in one log, in their order.

What survives a loss of power at a moment: of a file, what was there at its last fsync, and any of
the later writes; of a folder, the names of its last fsync, and the first few of the later changes.
A file moved between folders is never in neither, if the new folder was fsynced first.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftman import files


class _Recorder:
    """Stands in for the module `os` in ftman.files, and hears what others do to names."""

    def __init__(self, root: Path, log: Path):
        self._root = os.fspath(root)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def note(self, step: str, **facts: Any) -> None:
        """One line."""
        os.write(self._log, json.dumps({"step": step, **facts}).encode() + b"\n")

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        name = os.fspath(path)
        new = not os.path.lexists(name)
        fd = os.open(path, flags, mode)
        if name.startswith(self._root) and flags & (os.O_WRONLY | os.O_RDWR):
            self.note("open", path=name, file=os.fstat(fd).st_ino, new=new)
            if flags & os.O_TRUNC and not new:
                self.note("cut", file=os.fstat(fd).st_ino, size=0)
        return fd

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        done = os.pwrite(fd, data, offset)
        text = base64.b85encode(bytes(memoryview(data)[:done])).decode()
        self.note("write_step", file=os.fstat(fd).st_ino, offset=offset, data=text)
        return done

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        self.note("cut", file=os.fstat(fd).st_ino, size=size)

    def fsync(self, fd: int) -> None:
        # Noted first: what another thread writes meanwhile is not promised.
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_dir():
            self.note("names", path=os.fspath(path))
        else:
            self.note("fsync", file=os.fstat(fd).st_ino)

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        """An audit event: a name is about to change."""
        if event not in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link"):
            return
        two = event in ("os.rename", "os.link")
        names = [_full(given[0], given[-1] if not two else -1)]
        names += [_full(given[1], -1)] if two else []
        if not all(name.startswith(self._root) for name in names):
            return
        exists = os.path.lexists(names[0])
        if exists == (event == "os.mkdir"):
            return  # it will fail
        self.note(event.removeprefix("os."), path=names[0], to=names[-1])


def _full(name: Any, folder_fd: Any) -> str:
    path = Path(os.fsdecode(name))
    if isinstance(folder_fd, int) and folder_fd >= 0:
        path = Path(f"/proc/self/fd/{folder_fd}").readlink() / path
    return os.fspath(path.absolute())


_active: _Recorder | None = None
_hooked = False


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if _active is not None and event.startswith("os."):
        _active.hear(event, given)


@contextlib.contextmanager
def recording(root: Path, log: Path) -> Iterator[_Recorder]:
    """Record what this process does below `root`."""
    global _active, _hooked
    if not _hooked:
        sys.addaudithook(_audit)  # stays for ever, and is silent without a recorder
        _hooked = True
    _active = recorder = _Recorder(root, log)
    files.os = recorder  # type: ignore[assignment]
    try:
        yield recorder
    finally:
        _active = None
        files.os = os


@dataclass(eq=False)
class _File:
    """durable: bytes of the last fsync; later: what came since, in order."""

    durable: bytearray = field(default_factory=bytearray)
    later: list[tuple[int, bytes | None]] = field(default_factory=list)

    def synced(self) -> None:
        for step in self.later:
            _apply(self.durable, step)
        self.later = []

    def left(self, rng: random.Random) -> bytes:
        """What a loss of power leaves."""
        found = bytearray(self.durable)
        share = rng.choice([0.0, 1.0, rng.random()])
        for step in self.later:
            if rng.random() < share:
                _apply(found, step)
        return bytes(found)


def _apply(data: bytearray, step: tuple[int, bytes | None]) -> None:
    at, written = step
    end = at if written is None else at + len(written)
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    if written is None:
        del data[at:]
    else:
        data[at:end] = written


@dataclass(eq=False)
class _Change:
    """A later change of a folder: a name set, or taken away if `moved` (its new place) is kept."""

    name: str
    target: _File | _Folder | None
    moved: _Change | None = None
    kept: bool = False


@dataclass(eq=False)
class _Folder:
    """names: as everybody sees them; durable: as of the last fsync; later: changes since."""

    names: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    later: list[list[_Change]] = field(default_factory=list)

    def change(self, *changes: _Change) -> None:
        """All of them or none survives."""
        self.later.append(list(changes))
        for item in changes:
            if item.target is None:
                self.names.pop(item.name, None)
            else:
                self.names[item.name] = item.target

    def synced(self) -> None:
        self.durable = dict(self.names)
        for group in self.later:
            for item in group:
                item.kept = True
        self.later = []


class Disk:
    """The state of the recorded folder after some of the steps."""

    def __init__(self, root: Path):
        self._root_path = os.fspath(root)
        self._root = _Folder()
        self._files: dict[int, _File] = {}
        self.marks: list[Any] = []

    def take(self, step: dict[str, Any]) -> None:
        """One line of the log."""
        getattr(self, f"_{step['step']}")(step)

    def left(self, target: Path, rng: random.Random) -> None:
        """Write what a loss of power now would leave into an empty folder."""
        folders = list(self._walk(self._root))
        keep = {id(folder): rng.choice([0, len(folder.later), -1]) for folder in folders}
        for folder in folders:
            if keep[id(folder)] < 0:
                keep[id(folder)] = rng.randint(0, len(folder.later))
            for number, group in enumerate(folder.later):
                for item in group:
                    item.kept = number < keep[id(folder)]
        self._write(self._root, target, keep, rng)

    def _walk(self, folder: _Folder) -> Iterator[_Folder]:
        yield folder
        reachable = [*folder.durable.values(), *folder.names.values()]
        reachable += [item.target for group in folder.later for item in group if item.target]
        seen: set[int] = set()
        for item in reachable:
            if isinstance(item, _Folder) and id(item) not in seen:
                seen.add(id(item))
                yield from self._walk(item)

    def _write(
        self, folder: _Folder, target: Path, keep: dict[int, int], rng: random.Random
    ) -> None:
        names = dict(folder.durable)
        for group in folder.later[: keep[id(folder)]]:
            for item in group:
                if item.target is not None:
                    names[item.name] = item.target
                elif item.moved is None or item.moved.kept:
                    names.pop(item.name, None)
        target.mkdir(exist_ok=True)
        for name, item in names.items():
            if isinstance(item, _Folder):
                self._write(item, target / name, keep, rng)
            else:
                (target / name).write_bytes(item.left(rng))

    def _place(self, path: str) -> tuple[_Folder, str]:
        parts = os.path.relpath(path, self._root_path).split("/")
        folder = self._root
        for part in parts[:-1]:
            found = folder.names.get(part)
            if not isinstance(found, _Folder):  # made before the recording, and so durable
                found = folder.names[part] = folder.durable[part] = _Folder()
            folder = found
        return folder, parts[-1]

    def _mark(self, step: dict[str, Any]) -> None:
        self.marks.append(step["value"])

    def _open(self, step: dict[str, Any]) -> None:
        folder, name = self._place(step["path"])
        if step["new"] or name not in folder.names:
            self._files[step["file"]] = _File()
            folder.change(_Change(name, self._files[step["file"]]))

    def _write_step(self, step: dict[str, Any]) -> None:
        data = base64.b85decode(step["data"])
        self._files[step["file"]].later.append((step["offset"], data))

    def _cut(self, step: dict[str, Any]) -> None:
        self._files[step["file"]].later.append((step["size"], None))

    def _fsync(self, step: dict[str, Any]) -> None:
        self._files[step["file"]].synced()

    def _names(self, step: dict[str, Any]) -> None:
        if step["path"] == self._root_path:
            self._root.synced()
            return
        folder, name = self._place(step["path"])
        found = folder.names.get(name)
        if isinstance(found, _Folder):
            found.synced()

    def _mkdir(self, step: dict[str, Any]) -> None:
        folder, name = self._place(step["path"])
        folder.change(_Change(name, _Folder()))

    def _remove(self, step: dict[str, Any]) -> None:
        folder, name = self._place(step["path"])
        folder.change(_Change(name, None))

    def _rmdir(self, step: dict[str, Any]) -> None:
        folder, name = self._place(step["path"])
        found = folder.names.get(name)
        if isinstance(found, _Folder) and not found.names:  # else it was refused
            folder.change(_Change(name, None))

    def _link(self, step: dict[str, Any]) -> None:
        source, name = self._place(step["path"])
        target, new_name = self._place(step["to"])
        target.change(_Change(new_name, source.names[name]))

    def _rename(self, step: dict[str, Any]) -> None:
        source, name = self._place(step["path"])
        target, new_name = self._place(step["to"])
        arrived = _Change(new_name, source.names[name])
        if source is target:
            source.change(arrived, _Change(name, None))
            return
        target.change(arrived)
        source.change(_Change(name, None, arrived))


def read_log(log: Path) -> list[dict[str, Any]]:
    """The steps of all processes."""
    return [json.loads(line) for line in log.read_bytes().splitlines()]


def main(root: str, log: str, module: str) -> None:
    """Run a module with its steps recorded."""
    sys.argv = [module, *sys.argv[4:]]
    with recording(Path(root), Path(log)):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from tests.fakes import lost_writes  # the same names, however this file was started

    lost_writes.main(*sys.argv[1:4])

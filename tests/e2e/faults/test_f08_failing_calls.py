"""F8: a disk call fails, or writes less than asked, in a pull, a copy, a creation, a removal.

That the first, second, ... call fails in turn until none is left is tested where the calls are:
tests/ftman/catalog/test_crashes.py and tests/ftman/pull/test_disk_faults.py. EINTR is not among the
errors: Python itself repeats a call that a signal interrupted.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from ftman import faults, files
from ftman.errors import FtmanError
from ftman.pull.source import LocalSource
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import Rig, runs
from tests.fakes.engine import FakeScript
from tests.ftman.pull.conftest import Station, converter, gguf_bytes, options

KINDS = ("EIO", "ENOSPC", "EACCES", "EMFILE")
CODES = ("disk_full", "store_io", "out_of_resources")
COPY = ("POST", "/api/copy", {"source": "tiny", "destination": "new"})
CREATE = ("POST", "/api/create", {"model": "new", "from": "tiny", "system": "w", "stream": False})
DELETE = ("DELETE", "/api/delete", {"model": "new"})
WORKS = {"copy": COPY, "create": CREATE, "delete": DELETE}


class ShortWrites:
    """The module `os` of a disk that takes only a part of each write."""

    def __init__(self, rng: random.Random):
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        view = memoryview(data)
        return os.pwrite(fd, view[: self._rng.randint(1, max(1, len(view)))], offset)


@dataclass
class Counted:
    """Counts disk calls and fails one of them. nth 0: none."""

    nth: int = 0
    kind: str = "EIO"
    seen: int = 0

    def __call__(self, point: str) -> None:
        if point.startswith("files."):
            self.seen += 1
            if self.seen == self.nth:
                number = getattr(errno, self.kind)
                raise OSError(number, os.strerror(number), point)


def ask(url: str, work: str, fault: Counted) -> httpx.Response:
    """One request, disturbed."""
    method, path, body = WORKS[work]
    faults.listen(fault)
    try:
        return httpx.request(method, url + path, json=body, trust_env=False, timeout=60)
    finally:
        faults.listen(None)


@runs
def test_a_failing_call_is_a_clean_error_and_trying_again_helps(rig: Rig, num_points: int) -> None:
    with rig.inside(FakeScript()) as manager:
        calls = {work: Counted() for work in WORKS}
        for work in ("copy", "delete", "create", "delete"):
            calls[work].seen = 0
            assert ask(manager.url, work, calls[work]).status_code == 200
        for _ in range(num_points):
            for work in (rig.rng.choice(("copy", "create")), "delete"):
                nth = rig.rng.randrange(1, calls[work].seen + 1)
                one_fault(rig, manager.url, work, Counted(nth, rig.rng.choice(KINDS)))
        invariants.answers_when_healthy(manager.url)
        # What could not be removed was left for the clean-up, which spares what is new.
        manager.service.catalog.sweep([], grace_s=-1e6)


def one_fault(rig: Rig, url: str, work: str, fault: Counted) -> None:
    """The store is as it was or as it was to be; then the work succeeds."""
    before = rig.check_store()
    after = {"tiny/latest": before["tiny/latest"]}
    if work != "delete":
        after["new/latest"] = before["tiny/latest"]
    reply = ask(url, work, fault)
    if reply.status_code != 200:
        invariants.told_why(reply)
        assert reply.json()["code"] in CODES, (work, fault, reply.text)
    present = rig.check_store()
    invariants.one_of(present, [before, after])
    if present != after:
        assert ask(url, work, Counted()).status_code == 200, (work, fault)
    assert rig.check_store() == after, (work, fault)


class Pull:
    """A pull from a file into a store of its own."""

    def __init__(self, home: Path, source: Path):
        self.station = Station(home)
        self.models = self.station.config.paths.models
        files.make_dir(self.station.config.paths.state)  # made when a manager starts
        self._source = source

    def run(self, fault: Counted | None = None) -> FtmanError | None:
        """Its error, if there was one."""
        faults.listen(fault)
        given = replace(options(), converter=converter(families=["llama"]))
        try:
            self.station.pull("new", given, local=LocalSource(self._source))
        except FtmanError as error:
            return error
        finally:
            faults.listen(None)
        return None

    def is_whole(self) -> bool:
        """It is there, byte for byte; nothing else is."""
        present = invariants.sound_models(self.models)
        self.station.catalog.sweep([], grace_s=-1e6)
        invariants.no_orphans(self.models)
        right = self.station.weights("new") == self._source.read_bytes()
        return right and set(present) == {"new/latest"}


@runs
def test_a_failing_call_in_a_pull_keeps_the_store_whole(rig: Rig, num_points: int) -> None:
    source = rig.root / "m.gguf"
    source.write_bytes(gguf_bytes(3_000))
    counted = Counted()
    assert Pull(rig.root / "dry", source).run(counted) is None
    for number in range(-(-num_points // 2)):
        pull = Pull(rig.root / f"h{number}", source)
        fault = Counted(rig.rng.randrange(1, counted.seen + 1), rig.rng.choice(KINDS))
        error = pull.run(fault)
        present = invariants.sound_models(pull.models)
        assert error is not None or present, fault
        if error is not None:
            assert "\n" not in error.message
            assert error.code in CODES, (fault, error.message)
            assert pull.run() is None, fault
        assert pull.is_whole(), fault
    rig.check_outside()


@runs
def test_short_writes_lose_nothing(rig: Rig, num_points: int) -> None:
    source = rig.root / "m.gguf"
    source.write_bytes(gguf_bytes(3_000))
    for number in range(num_points // 5):
        pull = Pull(rig.root / f"h{number}", source)
        with mock.patch.object(files, "os", ShortWrites(rig.rng)):
            assert pull.run() is None
        assert pull.is_whole()

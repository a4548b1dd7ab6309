"""What pulling writes besides downloads: on a full disk the cause is told, and then it works.

tests/architecture/test_full_disks.py says for every writer where it is tested.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ftman import faults, files
from ftman.catalog.model import ModelChanges
from ftman.clock import SYSTEM
from ftman.errors import CannotFitError, FtmanError, failure_of
from ftman.names import parse_name
from ftman.pull import pull
from ftman.pull.index import Index
from ftman.pull.install import write_receipt
from ftman.pull.offline import export_model
from ftman.pull.pypi import fetch_wheel
from tests.fakes.hub import BadHub
from tests.ftman.catalog.samples import catalog_in, make_ftw, name_of, new_model
from tests.ftman.pull.conftest import Station, gguf_bytes, options
from tests.ftman.pull.test_cost import cost
from tests.ftman.pull.test_index import ENTRY, serve
from tests.ftman.pull.test_offline import exported, take_in
from tests.ftman.pull.test_pull import WINDOWS
from tests.ftman.pull.test_wheel import build_wheel, extract, fake_pip, member_of

NAME = "hf.co/org/tiny:tiny.gguf"
KEPT_PLAN = ["06bc2b3d02119b9a-plan"]
"""A pull takes it up, or the sweep of old partials removes it."""


@dataclass(frozen=True)
class Place:
    """Where a test works."""

    station: Station
    hub: BadHub
    folder: Path


@pytest.fixture
def place(station: Station, hub: BadHub, tmp_path: Path) -> Iterator[Place]:
    hub.add_repo("org/tiny", {"tiny.gguf": gguf_bytes(400_001)})
    yield Place(station, hub, tmp_path)
    faults.arm("")


def export(place: Place) -> Callable[[], object]:
    catalog = catalog_in(place.folder / "first")
    model = catalog.commit(name_of("m", "x"), new_model(make_ftw(catalog.paths, 1)))
    return lambda: export_model(catalog, model, place.folder / "stick", lambda _: None)


def import_(place: Place) -> Callable[[], object]:
    folder = exported(place.folder)
    return lambda: take_in(place.station, folder)


def take_out_of_a_wheel(place: Place) -> Callable[[], object]:
    wheel = build_wheel(place.folder)
    return lambda: extract(wheel, place.folder / "out")


def fetch_with_pip(place: Place) -> Callable[[], object]:
    wheel = build_wheel(place.folder)
    pip, folder = fake_pip(place.folder, wheel), place.folder / "job"
    return lambda: asyncio.run(fetch_wheel(member_of(wheel), folder, SYSTEM, lambda _: None, pip))


def plan(place: Place) -> Callable[[], object]:
    return lambda: cost(place.station, NAME, replace(options(), hub_endpoint=place.hub.url))


@pytest.mark.parametrize(
    ("begin", "write"),
    [
        (export, 1),
        (import_, 1),
        (take_out_of_a_wheel, 1),
        (fetch_with_pip, 1),
        (plan, 1),
        (plan, 2),
    ],
)
def test_a_full_disk_is_named_and_the_next_try_works(
    place: Place, begin: Callable[[Place], Callable[[], object]], write: int
) -> None:
    work = begin(place)
    faults.arm(f"files.write:{write}=error:ENOSPC")
    with pytest.raises((FtmanError, OSError)) as caught:
        work()
    error = caught.value
    told = error if isinstance(error, FtmanError) else failure_of(error)
    assert told is not None
    assert os.strerror(errno.ENOSPC) in told.message
    assert told.hint
    assert "0 bytes" not in told.message
    assert "fetched" not in told.hint  # nothing was, or it does not stay
    assert place.station.leftovers() == (KEPT_PLAN if begin is plan else [])
    faults.arm("")
    work()


def create(place: Place) -> Callable[[], object]:
    path = place.folder / "m.gguf"
    path.write_bytes(gguf_bytes(4000))

    async def run() -> None:
        manager = place.station.manager()
        try:
            async for _ in manager.install_files(parse_name("m"), {"m": path}, ModelChanges()):
                pass
        finally:
            await manager.close()

    return lambda: asyncio.run(run())


def fetch(place: Place) -> Callable[[], object]:
    given = replace(options(), hub_endpoint=place.hub.url)
    return lambda: place.station.pull(NAME, given)


@pytest.mark.parametrize(
    ("begin", "doing", "fetched"), [(create, "creating m:latest", False), (fetch, "tiny", True)]
)
def test_what_stopped_is_called_by_its_name_and_what_is_kept_is_said(
    place: Place, begin: Callable[[Place], Callable[[], object]], doing: str, fetched: bool
) -> None:
    work = begin(place)
    faults.arm("files.write:2=error:ENOSPC")
    with pytest.raises(CannotFitError, match="stopped: the disk is full") as caught:
        work()
    assert doing in caught.value.message
    assert ("What was fetched is kept" in caught.value.hint) == fetched


def test_an_export_that_needs_more_than_there_is_names_another_place(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = export(place)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1)
    with pytest.raises(CannotFitError, match=r"needs .* of disk; .*stick has 1 bytes") as caught:
        work()
    assert "FT_MODELS" not in caught.value.hint


@pytest.mark.slow
def test_a_window_that_cannot_be_noted_is_fetched_again(place: Place) -> None:
    given = replace(options(), supply=WINDOWS, hub_endpoint=place.hub.url)
    hits: list[str] = []
    faults.listen(hits.append)
    place.station.pull(NAME, given)
    faults.listen(None)
    told: list[str] = []
    last = hits.count("files.write")
    for number in range(1, last + 1):
        place.station.catalog.delete(NAME, lambda _: False)
        faults.arm(f"files.write:{number}=error:ENOSPC")
        try:
            place.station.pull(NAME, given)
        except FtmanError as error:
            told.append(error.message)
            faults.arm("")
            place.station.pull(NAME, given)
    assert len(told) > 3
    assert all(os.strerror(errno.ENOSPC) in message for message in told)
    assert place.station.leftovers() == []


def test_a_receipt_that_cannot_be_written_costs_another_try(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = replace(options(), hub_endpoint=place.hub.url)

    def on_a_full_disk(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(faults, "_armed", {})
            faults.arm("files.write=error:ENOSPC")
            write_receipt(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pull, "write_receipt", on_a_full_disk)
        with pytest.raises(FtmanError, match=os.strerror(errno.ENOSPC)):
            place.station.pull(NAME, given)
    place.station.pull(NAME, given)
    assert place.station.leftovers() == []


def test_a_web_registry_that_cannot_be_kept_is_told_of(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    url, name = serve(place.hub, m=ENTRY.format(name="m")), parse_name("m")
    faults.arm("files.write=error:ENOSPC")
    with caplog.at_level(logging.WARNING):
        assert Index.load((url,), place.folder).find(name) is None
    assert os.strerror(errno.ENOSPC) in caplog.text
    faults.arm("")
    assert Index.load((url,), place.folder).find(name) is not None

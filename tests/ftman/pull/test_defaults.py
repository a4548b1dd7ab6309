"""A pull of what is here already still applies default settings that changed since."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.catalog.model import ModelChanges
from ftman.pull import install
from ftman.pull.index import Index, IndexEntry
from ftman.pull.progress import Progress
from tests.fakes.hub import BadHub
from tests.ftman.pull.conftest import Station, gguf_bytes, options

DATA = gguf_bytes(100_000)
ENTRY = IndexEntry(
    name="tiny",
    tag="a",
    family="llama",
    license="mit",
    summary="A tiny model",
    default_tag="a",
    tags=("a",),
    format="q8_0",
    total_params=1,
    active_params=1,
    bytes=0,
    checked="never",
    sources=("hf://org/tiny@main",),
    files=("tiny.gguf",),
)


@pytest.fixture
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "modelfiles"
    folder.mkdir()
    monkeypatch.setattr(install, "data_folder", lambda name: folder)
    path = folder / "tiny.Modelfile"
    path.write_text("FROM tiny\nPARAMETER temperature 0.5\nSYSTEM Be kind.\n")
    return path


def pull(station: Station, hub: BadHub) -> list[Progress]:
    station.index = Index([ENTRY])
    given = replace(options(families=["llama"]), hub_endpoint=hub.url)

    async def run() -> list[Progress]:
        manager = station.manager(given)
        try:
            return [progress async for progress in manager.pull("tiny")]
        finally:
            await manager.close()

    return asyncio.run(run())


def test_changed_defaults_are_applied_without_a_download(
    station: Station, hub: BadHub, defaults: Path
) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    pull(station, hub)
    first = station.catalog.find("tiny:a")
    assert (first.parameters, first.system) == ({"temperature": 0.5}, "Be kind.")
    assert pull(station, hub)[-1].detail == "up to date"
    assert station.catalog.find("tiny:a").digest == first.digest
    defaults.write_text("FROM tiny\nPARAMETER temperature 0.9\n")
    sent = sum(item.sent for item in hub.asked if "/resolve/" in item.path)
    found = pull(station, hub)
    assert found[-1].detail == "its default settings changed: applied"
    assert "writing manifest" in [progress.status for progress in found]
    second = station.catalog.find("tiny:a")
    assert (second.parameters, second.system) == ({"temperature": 0.9}, "")
    assert second.ftw_id == first.ftw_id
    assert not second.damaged
    assert sum(item.sent for item in hub.asked if "/resolve/" in item.path) == sent


def test_a_pull_brings_back_the_publishers_settings(
    station: Station, hub: BadHub, defaults: Path
) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    pull(station, hub)
    base = station.catalog.find("tiny:a")
    station.catalog.create_from(base, base.name, ModelChanges(system="Be rude."))
    assert station.catalog.find("tiny:a").system == "Be rude."
    pull(station, hub)
    assert station.catalog.find("tiny:a").system == "Be kind."

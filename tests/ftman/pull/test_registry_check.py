"""A registry is held against what its sources hold; only confirmed entries get a date."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from ftman.clock import SYSTEM
from ftman.errors import UsageError
from ftman.pull.download import Downloader
from ftman.pull.index import read_entry_file
from ftman.pull.registry_check import (
    EntryState,
    check_entry_sources,
    entries_of,
    write_checked,
)
from ftman.pull.span import Health, Tools
from ftman.pull.transport import Timeouts, Transport
from tests.fakes.hub import BadHub
from tests.ftman.pull.conftest import SETTINGS, gguf_bytes

DATA = gguf_bytes(10_000)
GOOD = hashlib.sha256(DATA).hexdigest()
TEXT = """\
# Kept as it is.
name = "tiny"
family = "llama"
license = "mit"
summary = "A tiny model for tests of the registry"
default_tag = "a"

[tag.a]
format = "q8_0"
total_params = 1000
active_params = 1000
bytes = 0          # nobody has asked
checked = "never"
sources = ["hf://org/tiny@main"]
files = ["tiny.gguf"]
sha256 = { "tiny.gguf" = "%s" }

[tag.b]
format = "q8_0"
total_params = 1000
active_params = 1000
bytes = 77
checked = "never"
sources = ["hf://org/tiny@main", "hf://org/gone@main"]
files = ["*.gguf"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "registry" / "models" / "tiny.toml"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT % GOOD)
    return tmp_path / "registry"


def checked(folder: Path, hub: BadHub, name: str = "") -> list[EntryState]:
    async def ask() -> list[EntryState]:
        transport = Transport(Timeouts(connect_s=2, read_s=1), "ft")
        downloader = Downloader(Tools(transport, SETTINGS, SYSTEM, Health()))
        try:
            return [
                await check_entry_sources(entry, downloader, hub.url)
                for entry in entries_of(folder, name)
            ]
        finally:
            await transport.close()

    return asyncio.run(ask())


def test_what_is_as_it_says_is_confirmed_and_dated(folder: Path, hub: BadHub) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    first, second = checked(folder, hub)
    assert first.is_confirmed
    assert first.seen_bytes == len(DATA)
    assert not second.is_confirmed
    assert write_checked(folder, [first, second], "2026-12-24") == ["tiny:a"]
    path = folder / "models" / "tiny.toml"
    expected = (TEXT % GOOD).replace("bytes = 0 ", f"bytes = {len(DATA)} ", 1)
    assert path.read_text() == expected.replace('"never"', '"2026-12-24"', 1)
    assert [entry.checked for entry in read_entry_file(path)] == ["2026-12-24", "never"]
    assert hub.bytes_sent("/org/tiny/resolve/main/tiny.gguf") == 0


def test_sizes_and_missing_repositories_are_named(folder: Path, hub: BadHub) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    (state,) = checked(folder, hub, "tiny:b")
    there, gone = state.sources
    assert there.differences == ("it holds 10.0 kB (10000 bytes), the entry says 77 bytes",)
    assert "no such repository: hf.co/org/gone@main" in gone.differences[0]


def test_other_bytes_and_missing_files_are_named(folder: Path, hub: BadHub) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": gguf_bytes(10_000, 3)})
    (state,) = checked(folder, hub, "tiny:a")
    assert "tiny.gguf has sha256" in state.sources[0].differences[0]
    hub.add_repo("org/tiny", {"other.gguf": DATA})
    (state,) = checked(folder, hub, "tiny:a")
    assert state.sources[0].differences


def test_a_wheel_is_not_asked(hub: BadHub) -> None:
    (state,) = checked(Path(__file__).parents[3] / "registry", hub, "smollm2:135m")
    assert not state.sources[0].asked
    assert not state.is_confirmed


def test_an_unknown_entry_says_what_there_is(folder: Path) -> None:
    with pytest.raises(UsageError, match="no entry nope"):
        entries_of(folder, "nope")

"""The manager's side of the converter's lines, against a child that follows or breaks them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ftman.convert import job
from ftman.convert.job import ConvertChild
from ftman.convert.messages import (
    ByteRange,
    ConvertFile,
    ConvertSpec,
    Have,
    error_of,
    parse_line,
    parse_range,
    parse_result,
)
from ftman.convert.plan import built_families, require_family
from ftman.errors import CannotFitError, FtmanError, IntegrityError, UnsupportedError
from tests.fakes.processes import children

CONVERTER = Path(__file__).parents[2] / "fakes" / "converter.py"
DATA = bytes(range(256)) * 1000


class FolderSupply:
    """All bytes lie in one file; remembers what was asked and released."""

    def __init__(self, path: Path):
        self.path = path
        self.asked: list[ByteRange] = []
        self.released: list[ByteRange] = []

    async def provide(self, wanted: ByteRange) -> AsyncIterator[Have]:
        self.asked.append(wanted)
        yield Have(wanted.file, wanted.start, wanted.end, self.path, wanted.start)

    async def release(self, done: ByteRange) -> None:
        self.released.append(done)


class BrokenSupply(FolderSupply):
    """Cannot bring anything."""

    async def provide(self, wanted: ByteRange) -> AsyncIterator[Have]:
        raise CannotFitError("no room")
        yield


def command(**knobs: Any) -> tuple[str, ...]:
    return (sys.executable, str(CONVERTER), json.dumps(knobs))


@pytest.fixture
def spec(tmp_path: Path) -> ConvertSpec:
    (tmp_path / "source").write_bytes(DATA)
    return ConvertSpec("m:t", "gguf", (ConvertFile("f", len(DATA)),), tmp_path / "ftw")


def run(spec: ConvertSpec, supply: FolderSupply, **knobs: Any) -> Any:
    seen: list[tuple[int, int]] = []
    child = ConvertChild(spec, supply, command(**knobs))
    result = asyncio.run(child.run(lambda done, total: seen.append((done, total))))
    return result, seen


def test_bytes_are_fed_as_asked_and_released_when_done(spec: ConvertSpec, tmp_path: Path) -> None:
    supply = FolderSupply(tmp_path / "source")
    result, seen = run(spec, supply, chunk=100_000)
    assert (spec.target / "weights-00000.ftw").read_bytes() == DATA
    assert supply.released[-1].end == len(DATA)
    assert seen[-1] == (len(DATA), len(DATA))
    assert result.family == "llama"
    assert len(result.ftw_id) == 64


def test_a_plan_asks_for_headers_only(spec: ConvertSpec, tmp_path: Path) -> None:
    supply = FolderSupply(tmp_path / "source")
    plan = asyncio.run(ConvertChild(spec, supply, command(ftw_bytes=77)).plan())
    assert plan.disk_bytes == 77
    assert sum(item.end - item.start for item in supply.asked) == 64
    assert not spec.target.exists()


def test_a_child_that_died_goes_on_where_it_was(spec: ConvertSpec, tmp_path: Path) -> None:
    supply = FolderSupply(tmp_path / "source")
    with pytest.raises(FtmanError, match="SIGKILL") as caught:
        run(spec, supply, chunk=50_000, die_after=2)
    assert caught.value.code == "convert_died"
    first = len(supply.asked)
    run(spec, supply, chunk=50_000)
    assert len(supply.asked) == first + 4
    assert (spec.target / "weights-00000.ftw").read_bytes() == DATA


@pytest.mark.parametrize(
    ("knobs", "kind", "says"),
    [
        ({"exit_after": 1}, FtmanError, "status 3: the converter lost its way"),
        ({"garbage": 1}, FtmanError, "broke its protocol"),
        ({"error": {"code": "disk_full", "message": "need 1 have 0"}}, CannotFitError, "need 1"),
        ({"error": {"code": "bad_format", "message": "f: bad"}}, IntegrityError, "f: bad"),
        ({"error": {"code": "unsupported_x", "message": "no x"}}, UnsupportedError, "no x"),
        ({"error": {"code": "other", "message": ""}}, FtmanError, "converting failed"),
    ],
)
def test_each_way_to_fail_is_its_own_error(
    spec: ConvertSpec, tmp_path: Path, knobs: dict[str, Any], kind: type, says: str
) -> None:
    with pytest.raises(kind, match=says):
        run(spec, FolderSupply(tmp_path / "source"), **knobs)


def test_trouble_in_the_supply_ends_the_child(spec: ConvertSpec, tmp_path: Path) -> None:
    with pytest.raises(CannotFitError, match="no room"):
        run(spec, BrokenSupply(tmp_path / "source"))


def test_a_converter_that_does_not_start_is_named(spec: ConvertSpec, tmp_path: Path) -> None:
    child = ConvertChild(spec, FolderSupply(tmp_path / "source"), (sys.executable, "-c", "1/0"))
    with pytest.raises(FtmanError, match="ZeroDivisionError"):
        asyncio.run(child.run(lambda done, total: None))


def test_cancelling_ends_the_child_and_keeps_its_journal(spec: ConvertSpec, tmp_path: Path) -> None:
    class Stuck(FolderSupply):
        async def provide(self, wanted: ByteRange) -> AsyncIterator[Have]:
            if wanted.start:
                await asyncio.Event().wait()
            yield Have(wanted.file, wanted.start, wanted.end, self.path, wanted.start)

    async def cancel() -> None:
        child = ConvertChild(spec, Stuck(tmp_path / "source"), command(chunk=50_000))
        task = asyncio.ensure_future(child.run(lambda done, total: None))
        journal = spec.target / "journal.ndjson"
        while not journal.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert journal.exists()

    before = children()
    asyncio.run(cancel())
    assert children() == before


def test_cancelling_ends_a_child_that_reads_nothing_any_more(
    spec: ConvertSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "STOP_AFTER_S", 0.02)
    monkeypatch.setattr(ConvertSpec, "line", lambda _: b" " * (1 << 20))

    async def cancel() -> None:
        deaf = (sys.executable, "-c", "import time; time.sleep(60)")
        child = ConvertChild(spec, FolderSupply(tmp_path / "source"), deaf)
        task = asyncio.ensure_future(child.run(lambda done, total: None))
        while children() == before:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=20)
        assert done

    before = children()
    asyncio.run(cancel())
    assert children() == before


def test_families_are_listed_or_unknown() -> None:
    assert asyncio.run(built_families(command(families=["llama"]))) == ("llama",)
    assert asyncio.run(built_families(command())) == ()
    assert asyncio.run(built_families(command(families="llama"))) == ()
    require_family("llama", ("llama",), "m")
    require_family("anything", (), "m")
    with pytest.raises(UnsupportedError, match=r"m needs the model family x.*built: llama, qwen3"):
        require_family("x", ("llama", "qwen3"), "m")


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"a":1}', b'{"a":{},"b":{}}', b"nope", b'"x"', b"\xff"]
)
def test_lines_that_are_no_message_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_line(line)


def test_ranges_and_results_are_checked() -> None:
    with pytest.raises(ValueError, match="not valid"):
        parse_range({"file": "f", "start": 5, "end": 2})
    with pytest.raises(ValueError, match="is not a digest"):
        parse_result({"ftw_id": "../../x"})
    assert error_of({"code": "disk_full", "message": "x"}).hint

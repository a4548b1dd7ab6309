"""Every disk call of a pull fails once: a clean error, a sound store, a retry that works."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ftman import faults
from ftman.errors import FtmanError
from ftman.pull.source import LocalSource
from tests.ftman.pull.conftest import Station, converter, gguf_bytes, options

DATA = gguf_bytes(3_000)


async def failure(station: Station, path: Path, fault: str) -> FtmanError | None:
    """Pull once; the error if there was one. Anything but a FtmanError is a bug."""
    manager = station.manager(replace(options(), converter=converter(families=["llama"])))
    faults.arm(fault)
    try:
        async for _ in manager.pull("m:t", local=LocalSource(path)):
            pass
    except FtmanError as error:
        return error
    finally:
        faults.arm("")
        await manager.close()
    return None


def attempts(station: Station, path: Path, point: str, kind: str) -> int:
    """Fail the first, second, ... call until a pull does not reach it; returns the failures."""
    failures = 0
    for number in range(1, 80):
        hits: list[str] = []
        faults.listen(hits.append)
        error = asyncio.run(failure(station, path, f"{point}:{number}=error:{kind}"))
        faults.listen(None)
        assert not any(model.damaged for model in station.catalog.models())
        if hits.count(point) < number:
            assert error is None
            return failures
        if error is not None:
            failures += 1
            assert "\n" not in error.message
        for model in station.catalog.models():
            station.catalog.delete(model.name.full, lambda digest: False)
    raise AssertionError("every pull reached the fault")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "EACCES", "EMFILE"])
@pytest.mark.parametrize("point", ["files.open", "files.write", "files.fsync", "files.rename"])
def test_the_nth_call_fails(station: Station, tmp_path: Path, point: str, kind: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DATA)
    assert attempts(station, path, point, kind) >= 2
    assert station.weights("m:t") == DATA
    assert station.leftovers() == []


def test_one_full_disk_while_committing(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DATA)
    given = replace(options(), converter=converter(families=["llama"]))
    faults.arm("catalog.before_commit:1=error:ENOSPC")
    with pytest.raises(FtmanError, match="the disk is full") as caught:
        station.pull("m:t", given, local=LocalSource(path))
    assert caught.value.status == 507
    assert not station.catalog.models()
    faults.arm("")
    station.pull("m:t", given, local=LocalSource(path))
    assert station.weights("m:t") == DATA
    assert station.leftovers() == []

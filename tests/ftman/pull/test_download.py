"""Downloads against the bad registry: what is retried, what is put aside, what is never lost."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from ftman import faults
from ftman.clock import SYSTEM
from ftman.errors import CannotFitError, FtmanError, IntegrityError, NetworkError
from ftman.pull.download import Counters, Downloader
from ftman.pull.source import Mirror, SourceFile
from ftman.pull.span import DownloadSettings, Health, NoRangesError, Tools
from ftman.pull.transport import Timeouts, Transport
from tests.fakes.hub import BadHub
from tests.ftman.pull.conftest import SETTINGS, gguf_bytes

DATA = gguf_bytes(500_001)
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


class Count:
    """Adds up what the downloader tells."""

    def __init__(self) -> None:
        self.had = self.arrived = self.hashed = 0

    def counters(self) -> Counters:
        def had(count: int) -> None:
            self.had += count

        def arrived(count: int) -> None:
            self.arrived += count

        def hashed(count: int) -> None:
            self.hashed += count

        return Counters(had, arrived, hashed)


def file_of(*urls: str, digest: str = DIGEST, size: int = len(DATA)) -> SourceFile:
    mirrors = tuple(Mirror(url, group=f"place {i}") for i, url in enumerate(urls))
    return SourceFile("m.gguf", size, digest, mirrors)


def fetch(
    file: SourceFile,
    target: Path,
    settings: DownloadSettings = SETTINGS,
    count: Count | None = None,
    health: Health | None = None,
) -> None:
    async def run() -> None:
        transport = Transport(Timeouts(connect_s=0.5, read_s=0.2))
        downloader = Downloader(Tools(transport, settings, SYSTEM, health or Health()))
        try:
            await downloader.fetch(file, target, (count or Count()).counters())
        finally:
            await transport.close()

    asyncio.run(run())


def failure(file: SourceFile, target: Path) -> FtmanError | None:
    """The error of a download, None if there was none. An OSError would be a bug."""
    try:
        fetch(file, target)
    except FtmanError as error:
        return error
    return None


def test_parts_arrive_in_parallel_and_are_fetched_once(hub: BadHub, tmp_path: Path) -> None:
    count = Count()
    fetch(file_of(hub.add("/f", DATA)), tmp_path / "f", count=count)
    assert (tmp_path / "f").read_bytes() == DATA
    assert hub.bytes_sent("/f") == count.arrived == count.hashed == len(DATA)
    assert len(hub.requests("/f")) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    "script",
    [
        ["500", "503:0", "ok"],
        ["429:0", "ok"],
        ["cut@10000"],
        ["close", "ok"],
        ["stall", "ok"],
        ["403", "ok"],
    ],
)
def test_trouble_that_passes_is_retried(hub: BadHub, tmp_path: Path, script: list[str]) -> None:
    fetch(file_of(hub.add("/f", DATA, *script)), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("500", "max retries exceeded: .*500"),
        ("429:0", "429"),
        ("403", "403"),
        ("404", "404"),
        ("416", "416"),
        ("html", "web page"),
        ("loop", "redirects in a loop"),
        ("gzip", "compressed"),
        ("wrong-content-range", "were asked for"),
        ("wrong-length", "announces"),
        ("close", "broke|ended"),
        ("stall", "timed out"),
    ],
)
def test_trouble_that_stays_ends_in_one_clear_error(
    hub: BadHub, tmp_path: Path, script: str, says: str
) -> None:
    with pytest.raises(NetworkError, match=says) as caught:
        fetch(file_of(hub.add("/f", DATA, script)), tmp_path / "f")
    assert "m.gguf" in caught.value.message
    assert "\n" not in caught.value.message
    passes = script in ("500", "429:0", "close", "stall")
    assert ("goes on where it stopped" in caught.value.hint) == passes
    assert caught.value.hint
    assert not (tmp_path / "f").exists()
    assert len(hub.requests("/f")) <= 40


@pytest.mark.parametrize(
    "script",
    [
        "500",
        "429:30",
        "404",
        "403",
        "416",
        "html",
        "loop",
        "gzip",
        "wrong-content-range",
        "wrong-length",
        "close",
        "stall",
        "no-range",
        "slow:2000",
    ],
)
def test_another_mirror_takes_over(hub: BadHub, tmp_path: Path, script: str) -> None:
    bad, good = hub.add("/bad", DATA, script), hub.add("/good", DATA)
    fetch(file_of(bad, good), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_switch_in_the_middle_of_a_file_loses_no_byte(hub: BadHub, tmp_path: Path) -> None:
    bad = hub.add("/bad", DATA, "ok", "ok", "ok", "cut@20000", "500")
    good = hub.add("/good", DATA)
    fetch(file_of(bad, good), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    assert hub.bytes_sent("/bad") > 150_000
    assert hub.bytes_sent("/bad") + hub.bytes_sent("/good") == len(DATA)


def test_a_lying_mirror_is_put_aside_for_the_session(hub: BadHub, tmp_path: Path) -> None:
    bad, good = hub.add("/bad", DATA, "flip@300000"), hub.add("/good", DATA)
    health = Health()
    fetch(file_of(bad, good), tmp_path / "f", health=health)
    assert (tmp_path / "f").read_bytes() == DATA
    assert "place 0" in health.groups
    before = hub.bytes_sent("/bad")
    fetch(file_of(bad, good), tmp_path / "g", health=health)
    assert hub.bytes_sent("/bad") == before


def test_of_several_givers_each_suspect_is_tried_alone(hub: BadHub, tmp_path: Path) -> None:
    first = hub.add("/first", DATA, "ok", "500")
    liar = hub.add("/liar", DATA, "flip@400000")
    fetch(file_of(first, liar, hub.add("/good", DATA)), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_wrong_bytes_everywhere_leave_nothing(hub: BadHub, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="digest mismatch, file must be downloaded again"):
        fetch(file_of(hub.add("/f", DATA, "flip@7")), tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_a_server_without_ranges_is_taken_in_one_stream(hub: BadHub, tmp_path: Path) -> None:
    fetch(file_of(hub.add("/f", DATA, "no-range")), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_span_from_a_server_without_ranges_is_refused(hub: BadHub, tmp_path: Path) -> None:
    async def run() -> None:
        transport = Transport()
        downloader = Downloader(Tools(transport, SETTINGS, SYSTEM, Health()))
        try:
            file = file_of(hub.add("/f", DATA, "no-range"))
            await downloader.fetch_span(file, (5, 100), tmp_path / "f", Count().counters())
        finally:
            await transport.close()

    with pytest.raises(NoRangesError, match="ignores the Range header"):
        asyncio.run(run())


def test_a_file_that_changed_is_begun_again(hub: BadHub, tmp_path: Path) -> None:
    url = hub.add("/f", DATA, "etag:old", "etag:old", "etag:new")
    fetch(file_of(url, digest=""), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_file_that_keeps_changing_is_given_up(hub: BadHub, tmp_path: Path) -> None:
    script = [f"etag:{number}" for number in range(40)]
    with pytest.raises(NetworkError, match="keeps changing"):
        fetch(file_of(hub.add("/f", DATA, *script), digest=""), tmp_path / "f")


def test_a_file_of_another_size_is_refused(hub: BadHub, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="500001 bytes where the file has 400000"):
        fetch(file_of(hub.add("/f", DATA), size=400_000), tmp_path / "f")


def test_slow_ranges_finish_when_there_is_no_other_mirror(hub: BadHub, tmp_path: Path) -> None:
    data = DATA[:40_000]
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    url = hub.add("/f", data, *["cut@4000"] * 12)
    fetch(file_of(url, digest=digest, size=len(data)), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == data


def test_redirects_keep_the_range_and_drop_the_secret(hub: BadHub, tmp_path: Path) -> None:
    with BadHub() as other:
        there = other.add("/real", DATA)
        url = hub.add("/f", b"", f"to:{there}")
        file = SourceFile("m.gguf", len(DATA), DIGEST, (Mirror(url, "x", token="hush"),))
        fetch(file, tmp_path / "f")
        assert (tmp_path / "f").read_bytes() == DATA
        assert all(a.headers["authorization"] == "Bearer hush" for a in hub.requests("/f"))
        assert all("authorization" not in a.headers for a in other.requests("/real"))
        assert all("range" in a.headers for a in other.requests("/real"))


def test_a_secret_survives_a_redirect_on_its_own_host(hub: BadHub, tmp_path: Path) -> None:
    url = hub.add("/f", b"", f"to:{hub.add('/real', DATA)}")
    fetch(SourceFile("m", len(DATA), DIGEST, (Mirror(url, "x", token="hush"),)), tmp_path / "f")
    assert all(a.headers["authorization"] == "Bearer hush" for a in hub.requests("/real"))


def test_an_expired_redirect_is_asked_for_again(hub: BadHub, tmp_path: Path) -> None:
    with BadHub() as other:
        there = other.add("/real", DATA, "ok", "ok", "ok", "403", "ok")
        url = hub.add("/f", b"", f"to:{there}")
        fetch(file_of(url), tmp_path / "f", replace(SETTINGS, parts=1))
        assert (tmp_path / "f").read_bytes() == DATA
        assert len(hub.requests("/f")) == 2


def test_retry_after_is_waited_for(hub: BadHub, tmp_path: Path) -> None:
    waits: list[float] = []

    class Clock:
        wall = staticmethod(SYSTEM.wall)
        monotonic = staticmethod(SYSTEM.monotonic)

        async def sleep(self, seconds: float) -> None:
            waits.append(seconds)

    async def run() -> None:
        transport = Transport()
        tools = Tools(transport, replace(SETTINGS, parts=1), Clock(), Health())
        try:
            file = file_of(hub.add("/f", DATA, "429:7", "ok"))
            await Downloader(tools).fetch(file, tmp_path / "f", Count().counters())
        finally:
            await transport.close()

    asyncio.run(run())
    assert waits == [7.0]


def test_no_server_and_no_host_are_told_apart(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NetworkError, match=f"cannot connect to 127.0.0.1:{port}"):
        fetch(file_of(f"http://127.0.0.1:{port}/f"), tmp_path / "f")


def test_an_unknown_host_is_a_dns_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(NetworkError, match=r"host nowhere\.invalid cannot be found"):
        fetch(file_of("http://nowhere.invalid/f"), tmp_path / "f")


def test_tls_trouble_is_told_as_such(hub: BadHub, tmp_path: Path) -> None:
    url = hub.add("/f", DATA).replace("http://", "https://")
    with pytest.raises(NetworkError, match="TLS"):
        fetch(file_of(url), tmp_path / "f")


def test_a_clean_stop_fetches_nothing_twice(hub: BadHub, tmp_path: Path) -> None:
    url = hub.add("/f", DATA, "slow:400000")

    async def run(cut_s: float | None, count: Count) -> None:
        transport = Transport()
        downloader = Downloader(Tools(transport, SETTINGS, SYSTEM, Health()))
        task = asyncio.ensure_future(
            downloader.fetch(file_of(url), tmp_path / "f", count.counters())
        )
        if cut_s is not None:
            while count.arrived < 100_000:
                await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await transport.close()

    first, second = Count(), Count()
    asyncio.run(run(0.1, first))
    hub.script("/f", "ok")
    asyncio.run(run(None, second))
    assert (tmp_path / "f").read_bytes() == DATA
    assert second.had == first.arrived >= 100_000
    assert second.had + second.arrived == len(DATA)


@pytest.mark.parametrize("point", ["files.open", "files.write", "files.fsync", "files.rename"])
@pytest.mark.parametrize("kind", ["ENOSPC", "EIO", "EACCES"])
def test_each_failing_disk_call_is_a_clean_error_and_a_retry_works(
    hub: BadHub, tmp_path: Path, point: str, kind: str
) -> None:
    data = DATA[:60_000]
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    file = file_of(hub.add("/f", data), digest=digest, size=len(data))
    for number in range(1, 100):
        faults.arm(f"{point}:{number}=error:{kind}")
        failed = failure(file, tmp_path / "f")
        faults.arm("")
        if failed is None:
            break
        assert isinstance(failed, CannotFitError) == (kind == "ENOSPC"), failed
    assert 1 < number < 99
    fetch(file, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == data


def test_the_reserve_stops_the_download_and_keeps_the_partial(
    hub: BadHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([10_000, 5_000])
    monkeypatch.setattr("ftman.files.free_bytes", lambda path: next(free, 500))
    file = file_of(hub.add("/f", DATA))
    with pytest.raises(CannotFitError, match=r"still to come.*must stay free") as caught:
        fetch(file, tmp_path / "f", replace(SETTINGS, reserve_bytes=1_000))
    assert caught.value.code == "disk_full"
    monkeypatch.undo()
    count = Count()
    fetch(file, tmp_path / "f", count=count)
    assert count.had > 0
    assert (tmp_path / "f").read_bytes() == DATA

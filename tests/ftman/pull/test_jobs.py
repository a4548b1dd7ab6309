"""Who sees a pull, how long it lives, what is remembered of it."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.catalog.model import Model, ModelChanges
from ftman.clock import SYSTEM
from ftman.errors import ConflictError, FtmanError, NotFoundError, UsageError
from ftman.names import parse_name
from ftman.pull.job_store import KEEP_ROWS, SCHEMA_VERSION, JobStore, JobView, PullWish
from ftman.pull.jobs import PARTIAL_AGE_S, JobManager
from ftman.pull.progress import Bar, Progress, RateMeter
from tests.fakes.hub import BadHub
from tests.fakes.processes import children
from tests.ftman.pull.conftest import Station, gguf_bytes, options

DATA = gguf_bytes(400_001)
SLOW = "slow:500000"


async def drain(manager: JobManager, name: str) -> list[Progress]:
    return [progress async for progress in manager.pull(name, insecure=True)]


async def until_bytes(hub: BadHub, manager: JobManager, count: int) -> None:
    while not any(view.completed >= count for view in manager.jobs()):
        await asyncio.sleep(0.005)


def test_two_clients_share_one_job_and_its_bytes(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA, SLOW)

    async def both() -> None:
        manager = station.manager()
        first = asyncio.ensure_future(drain(manager, url))
        await until_bytes(hub, manager, 50_000)
        assert len([view for view in manager.jobs() if view.state == "running"]) == 1
        late = await drain(manager, url)
        assert late[0].status == "pulling manifest"
        assert late[-1] == (await first)[-1] == Progress("success", phase="done")
        await manager.close()

    asyncio.run(both())
    assert hub.bytes_sent("/x/tiny.gguf") <= len(DATA) + 100


def test_the_same_model_under_two_spellings_is_one_job(station: Station) -> None:
    async def keys() -> None:
        manager = station.manager(options(error={"code": "x", "message": "no"}))
        found = await asyncio.gather(
            drain(manager, "nosuch"), drain(manager, "NoSuch:latest"), return_exceptions=True
        )
        assert found[0] is found[1]
        await manager.close()

    asyncio.run(keys())


def test_one_of_two_viewers_may_leave(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA, SLOW)

    async def leave() -> None:
        manager = station.manager()
        stays = asyncio.ensure_future(drain(manager, url))
        await until_bytes(hub, manager, 10_000)
        goes = manager.pull(url, insecure=True)
        await goes.__anext__()
        await goes.aclose()
        assert (await stays)[-1].status == "success"
        await manager.close()

    asyncio.run(leave())


def test_the_last_viewer_leaving_cancels_and_keeps_the_partial(
    station: Station, hub: BadHub
) -> None:
    url = hub.add("/x/tiny.gguf", DATA, SLOW)

    async def leave() -> int:
        manager = station.manager()
        stream = manager.pull(url, insecure=True)
        async for progress in stream:
            if progress.completed > 100_000:
                break
        await stream.aclose()
        while any(view.state == "running" for view in manager.jobs()):
            await asyncio.sleep(0.01)
        assert manager.jobs()[0].state == "cancelled"
        await manager.close()
        return hub.bytes_sent("/x/tiny.gguf")

    before = asyncio.run(leave())
    assert 100_000 < before < len(DATA)
    assert len(station.leftovers()) == 1
    hub.script("/x/tiny.gguf", "ok")
    station.pull(url, insecure=True)
    assert station.weights("tiny") == DATA
    # What was still in the sockets at the cancel is all that may come twice.
    assert hub.bytes_sent("/x/tiny.gguf") <= len(DATA) + 4 * 20_000


def test_a_paused_pull_goes_on_after_a_restart_without_a_viewer(
    station: Station, hub: BadHub
) -> None:
    url = hub.add("/x/tiny.gguf", DATA, SLOW)

    async def pause() -> str:
        manager = station.manager()
        watching = asyncio.ensure_future(drain(manager, url))
        await until_bytes(hub, manager, 100_000)
        job_id = manager.jobs()[0].id
        await manager.pause(job_id)
        with pytest.raises(FtmanError, match="was paused") as caught:
            await watching
        assert caught.value.hint.startswith(f"ft jobs resume {job_id}")
        assert manager.jobs()[0].state == "paused"
        await manager.close()
        return job_id

    async def resume(job_id: str) -> None:
        manager = station.manager()
        assert manager.resume(job_id).state == "running"
        with pytest.raises(ConflictError, match="running already"):
            manager.resume(job_id)
        viewer = manager.pull(url, insecure=True)  # one who looks in and leaves ends nothing
        await viewer.__anext__()
        await viewer.aclose()
        while manager.jobs()[0].state == "running":
            await asyncio.sleep(0.01)
        assert manager.jobs()[0].state == "done", manager.jobs()[0].error
        with pytest.raises(NotFoundError):
            manager.resume("0" * 12)
        with pytest.raises(NotFoundError):
            await manager.pause(job_id)
        await manager.close()

    job_id = asyncio.run(pause())
    assert hub.bytes_sent("/x/tiny.gguf") < len(DATA)
    hub.script("/x/tiny.gguf", "ok")
    asyncio.run(resume(job_id))
    assert station.weights("tiny") == DATA
    assert hub.bytes_sent("/x/tiny.gguf") <= len(DATA) + 4 * 20_000


def test_coming_back_in_time_keeps_the_job(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA, SLOW)

    async def back() -> None:
        manager = station.manager(replace(options(), leave_s=0.2))
        stream = manager.pull(url, insecure=True)
        await stream.__anext__()
        await stream.aclose()
        assert (await drain(manager, url))[-1].status == "success"
        await manager.close()

    asyncio.run(back())


def test_cancel_ends_the_job_for_everyone(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA, SLOW)

    async def cancel() -> None:
        manager = station.manager()
        viewer = asyncio.ensure_future(drain(manager, url))
        await until_bytes(hub, manager, 10_000)
        await manager.cancel(manager.jobs()[0].id)
        with pytest.raises(FtmanError, match="cancelled; what was fetched is kept"):
            await viewer
        with pytest.raises(NotFoundError, match="no running job"):
            await manager.cancel("nope")
        await manager.close()

    asyncio.run(cancel())


def test_closing_the_manager_ends_jobs_and_children(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA, SLOW)

    async def close() -> None:
        manager = station.manager()
        viewer = asyncio.ensure_future(drain(manager, url))
        await until_bytes(hub, manager, 10_000)
        await manager.close()
        with pytest.raises(FtmanError, match="cancelled"):
            await viewer

    before = children()
    asyncio.run(close())
    assert children() == before


def test_a_running_job_claims_what_it_installs(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "sha256-abc"
    path.write_bytes(DATA)

    async def create() -> None:
        manager = station.manager()
        stream = manager.install_files(parse_name("mine"), {"m.gguf": path}, ModelChanges())
        await stream.__anext__()
        assert manager.uses("abc")
        assert manager.uses("sha256:abc")
        assert not manager.uses("other")
        with pytest.raises(ConflictError, match="creating mine:latest is under way already"):
            async for _ in manager.install_files(
                parse_name("mine"), {"m.gguf": path}, ModelChanges()
            ):
                pass
        async for _ in stream:
            pass
        assert not manager.uses("abc")
        await manager.close()

    asyncio.run(create())


def test_create_from_files_applies_the_given_texts(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    changes = ModelChanges(system="be brief", template="{{ .Prompt }}", parameters={"top_k": 3})

    async def create(named: dict[str, Path]) -> None:
        manager = station.manager()
        try:
            async for _ in manager.install_files(parse_name("mine"), named, changes):
                pass
        finally:
            await manager.close()

    asyncio.run(create({"m.gguf": path}))
    model = station.catalog.find("mine")
    assert (model.system, model.template, model.parameters) == (
        "be brief",
        "{{ .Prompt }}",
        {"top_k": 3},
    )
    assert path.exists()
    with pytest.raises(UsageError, match="not in GGUF format"):
        asyncio.run(create({"readme.txt": tmp_path / "blob2"} if _write(tmp_path) else {}))
    with pytest.raises(UsageError, match="no files provided"):
        asyncio.run(create({}))


def _write(folder: Path) -> bool:
    (folder / "blob2").write_bytes(b"hello")
    return True


def test_jobs_are_remembered_and_cut_off_ones_are_told(station: Station) -> None:
    folder = station.config.paths.state
    store = JobStore(folder)
    now = SYSTEM.wall()
    store.save(JobView("1", "a", "running", started_wall_s=now - 9, updated_wall_s=now - 9))
    store.save(JobView("2", "b", "done", started_wall_s=now - 8, updated_wall_s=now - 8))
    store.close()
    manager = station.manager()
    assert [(v.name, v.state) for v in manager.jobs()] == [("b", "done"), ("a", "interrupted")]
    asyncio.run(manager.close())


def test_what_never_began_to_fetch_is_no_job(station: Station, hub: BadHub) -> None:
    """A mistyped name, an unknown repository, a server that has no such file."""
    missing = hub.add("/x/gone.gguf", DATA, "404")

    async def pull(name: str) -> None:
        manager = station.manager(replace(options(), hub_endpoint=hub.url))
        with pytest.raises(FtmanError):
            await drain(manager, name)
        assert manager.jobs() == []
        await manager.close()

    for name in ("smolm2", "hf.co/org/nothing", missing):
        asyncio.run(pull(name))
    manager = station.manager()
    assert manager.jobs() == []
    asyncio.run(manager.close())


def test_what_failed_later_is_remembered_however_it_fails_the_next_time(
    station: Station, hub: BadHub
) -> None:
    url = hub.add("/x/tiny.gguf", DATA)

    async def fail() -> None:
        manager = station.manager(options(error={"code": "x", "message": "no such tensor"}))
        with pytest.raises(FtmanError, match="no such tensor"):
            await drain(manager, url)
        hub.script("/x/tiny.gguf", "404")
        manager.resume(manager.jobs()[0].id)
        while manager.jobs()[0].state == "running":
            await asyncio.sleep(0.005)
        (job,) = manager.jobs()
        assert job.state == "failed"
        assert "no such tensor" not in job.error
        await manager.close()

    asyncio.run(fail())


def test_a_pull_that_is_paused_before_it_fetches_can_go_on(station: Station, hub: BadHub) -> None:
    url = hub.add("/x/tiny.gguf", DATA)

    async def pause() -> None:
        manager = station.manager()
        watching = asyncio.ensure_future(drain(manager, url))
        while not manager.jobs():
            await asyncio.sleep(0)
        await manager.pause(manager.jobs()[0].id)
        with pytest.raises(FtmanError, match="was paused"):
            await watching
        (job,) = manager.jobs()
        assert manager.resume(job.id).state == "running"
        await manager.close()

    asyncio.run(pause())


def test_jobs_that_ended_long_ago_are_forgotten_but_for_the_paused(station: Station) -> None:
    store, old = JobStore(station.config.paths.state), SYSTEM.wall() - PARTIAL_AGE_S - 100
    for state in ("running", "done", "failed", "cancelled", "paused"):
        store.save(JobView(state, "a", state, started_wall_s=old, updated_wall_s=old))
        store.save_wish(state, PullWish("a"))
    store.close()
    manager = station.manager()
    assert [view.id for view in manager.jobs()] == ["paused"]
    with pytest.raises(NotFoundError, match="no pull 'failed'"):
        manager.resume("failed")
    asyncio.run(manager.close())


def test_only_so_many_jobs_are_remembered(station: Station) -> None:
    store = JobStore(station.config.paths.state)
    for number in range(KEEP_ROWS + 5):
        store.save(JobView(str(number), "a", "paused", updated_wall_s=float(number)))
    store.forget(0)
    assert [row.id for row in store.rows()] == [str(n) for n in range(KEEP_ROWS + 4, 4, -1)]
    store.close()


@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_other_work_than_a_pull_is_not_called_one(station: Station, state: str) -> None:
    async def work() -> None:
        manager, begun = station.manager(), asyncio.Event()

        async def make(*_: object) -> Model:
            begun.set()
            if state == "failed":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x")
            await asyncio.sleep(60)
            raise AssertionError

        stream = manager.run_job("creating", "mine", "mine", make)
        watching = asyncio.ensure_future(_drained(stream))
        await begun.wait()
        if state == "cancelled":
            await manager.cancel(manager.jobs()[0].id)
        with pytest.raises(FtmanError) as caught:
            await watching
        assert "pull" not in caught.value.message + caught.value.hint
        assert caught.value.code == {"cancelled": "cancelled", "failed": "store_io"}[state]
        (job,) = manager.jobs()
        assert job.state == state
        await manager.close()

    asyncio.run(work())


async def _drained(stream: AsyncIterator[Progress]) -> list[Progress]:
    return [progress async for progress in stream]


def test_a_damaged_state_database_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database at all, but long enough to look" * 50)
    store = JobStore(tmp_path)
    store.save(JobView("1", "a", "done"))
    assert store.rows()[0].name == "a"
    store.close()
    assert (tmp_path / "state.db.damaged").exists()


def test_a_state_database_that_the_disk_refuses_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JobStore(tmp_path)
    store.save(JobView("1", "a", "done"))
    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(JobStore, "_open", full)
        with pytest.raises(FtmanError, match=r"state\.db cannot be opened: .*full") as caught:
            JobStore(tmp_path)
    assert "ft doctor" in caught.value.hint
    store = JobStore(tmp_path)
    assert [job.name for job in store.rows()] == ["a"]
    store.close()


def full(_: JobStore) -> sqlite3.Connection:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_newer_state_database_is_refused(tmp_path: Path) -> None:
    JobStore(tmp_path).close()
    database = sqlite3.connect(tmp_path / "state.db")
    with database:
        database.execute("UPDATE parts SET version = ?", (SCHEMA_VERSION + 1,))
    database.close()
    with pytest.raises(ConflictError, match="newer ft"):
        JobStore(tmp_path)


def test_old_partials_are_swept_and_young_ones_kept(station: Station) -> None:
    partial = station.config.paths.partial
    for name, age in (("young", 100.0), ("old", PARTIAL_AGE_S + 100)):
        (partial / name).mkdir(parents=True)
        (partial / name / "f").write_bytes(b"x")
        when = SYSTEM.wall() - age
        os.utime(partial / name / "f", (when, when))
        os.utime(partial / name, (when, when))
    asyncio.run(station.manager().close())
    assert station.leftovers() == ["young"]


class HandClock:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_rate_forgets_what_is_long_past() -> None:
    clock = HandClock()
    meter = RateMeter(clock)
    for _ in range(10):
        clock.now += 1
        meter.add(1000)
    assert meter.rate() == pytest.approx(1000, rel=0.01)
    for _ in range(10):
        clock.now += 1
        meter.add(100)
    assert meter.rate() == pytest.approx(100, rel=0.01)


def test_a_bar_emits_rarely_and_always_its_end() -> None:
    clock, seen = HandClock(), []
    bar = Bar(seen.append, clock, Progress("pulling x", total=1000))
    for _ in range(100):
        clock.now += 0.001
        bar.add(10)
    assert len(seen) <= 4
    assert seen[-1].completed == seen[-1].total == 1000
    assert Progress("x", total=100, completed=50, rate_bytes_per_s=10).eta_s == 5

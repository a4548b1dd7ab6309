"""Conversations that left the device come back by copy, with the tokens they get otherwise."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftengine.cache.park_files import ParkFolder
from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.errors import CapacityError, RequestError
from ftengine.protocol import CacheStats, GenerateRequest, MemoryRequest
from ftengine.runtime.engine import Engine
from ftengine.runtime.outcomes import Result, result_of
from ftengine.runtime.park import write_all
from ftman import faults
from tests.ftengine.parity.tiny_engines import make_tiny, random_ids
from tests.ftengine.runtime.edit_scripts import SAMPLING, Script

CONTEXT = 144
PAGES = CONTEXT // 16
KINDS = {"full": "llama", "window": "gemma3", "state": "qwen3_5"}
SHORT = ["full", pytest.param("window", marks=pytest.mark.slow), "state"]
PARKED = 16
ON_DEVICE = 4

Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Converts each family once."""
    made: dict[str, Path] = {}

    def model(family: str) -> Path:
        if family not in made:
            made[family] = make_tiny(family, tmp_path_factory.mktemp(family))[1]
        return made[family]

    return model


def engine_of(ftw: Path, *, on: bool = True, parallel: int = 1, **memory: Any) -> Engine:
    config = EngineConfig(
        ftw,
        context_tokens=CONTEXT,
        num_parallel=parallel,
        step_tokens=96,
        prefix_cache=on,
        prefill_share=1.0,
        compute=ComputeConfig(compute="float32", threads=2),
        memory=MemoryConfig(**memory),
    )
    engine = Engine(config)
    engine.load()
    return engine


def sizes(ftw: Path) -> tuple[int, int]:
    """Bytes of a page and of a state."""
    engine = engine_of(ftw)
    stats = cache(engine)
    return engine.runner.pool.bytes_per_page, stats.checkpoint_bytes


def small(ftw: Path, conversations: int = ON_DEVICE, parallel: int = 1, **memory: Any) -> Engine:
    """The device holds so many conversations, and as many states as they have ends."""
    page, state = sizes(ftw)
    if state:
        memory["checkpoint_bytes"] = 2 * conversations * state
    return engine_of(ftw, parallel=parallel, kv_bytes=conversations * PAGES * page, **memory)


def host_bytes(ftw: Path, conversations: int) -> int:
    """Memory for so many conversations, and for more states than they have."""
    page, state = sizes(ftw)
    return max(conversations * PAGES * page, 4 * conversations * state) * (2 if state else 1)


def cache(engine: Engine) -> CacheStats:
    stats = engine.info.cache
    assert stats is not None
    return stats


def ask(name: str, ids: tuple[int, ...], **more: Any) -> GenerateRequest:
    return GenerateRequest(name, ids, SAMPLING, max_tokens=more.pop("max_tokens", 5), **more)


def one(engine: Engine, request: GenerateRequest) -> Result:
    result = engine.generate_sync([request])[0]
    engine.scheduler.check_integrity()
    if engine.scheduler.reuse.parked is not None:
        engine.scheduler.reuse.parked.check_integrity()
    return result


def cached(result: Result) -> int:
    assert result.finish is not None
    return result.finish.cached_tokens


def talk(engine: Engine, truth: Engine, count: int, salt: str = "") -> list[tuple[int, ...]]:
    """So many first turns; each text with its reply."""
    texts = []
    for number in range(count):
        request = ask(f"first-{number}", random_ids(90, seed=number), salt=salt)
        reply = one(engine, request).token_ids
        assert reply == one(truth, request).token_ids
        texts.append((*request.token_ids, *reply))
    return texts


def go_on(engine: Engine, truth: Engine, texts: list[tuple[int, ...]], salt: str = "") -> list[int]:
    """A second turn of each. Returns how many tokens each had to compute."""
    computed = []
    for number, text in enumerate(texts):
        ids = (*text, *random_ids(8, seed=100 + number))
        found = one(engine, ask(f"again-{number}", ids, salt=salt))
        assert found.token_ids == one(truth, ask(f"again-{number}", ids)).token_ids
        computed.append(len(ids) - cached(found))
    return computed


NEW = 8 + 1
"""What is said in the second turn, and the last token of a reply, which is never computed."""


@pytest.mark.parametrize("kind", SHORT)
def test_sixteen_conversations_on_a_device_for_four_go_on_by_copy(
    kind: str, models: Models
) -> None:
    ftw = models(KINDS[kind])
    engine = small(ftw, park_bytes=host_bytes(ftw, PARKED))
    truth = engine_of(ftw, on=False)
    texts = talk(engine, truth, PARKED)
    assert cache(engine).evicted_pages > 0
    assert go_on(engine, truth, texts) == [NEW] * PARKED
    assert cache(engine).returned_tokens > (PARKED - ON_DEVICE) * 90


@pytest.mark.parametrize("kind", ["full", "state"])
def test_without_room_for_parking_they_are_computed_again(kind: str, models: Models) -> None:
    """The test above can fail."""
    ftw = models(KINDS[kind])
    engine, truth = small(ftw, park_bytes=0), engine_of(ftw, on=False)
    assert max(go_on(engine, truth, talk(engine, truth, PARKED))) > 90
    assert cache(engine).parked_limit_bytes == 0


@pytest.mark.parametrize("kind", ["full", "state"])
def test_what_leaves_memory_goes_to_files_and_comes_back(
    kind: str, models: Models, tmp_path: Path
) -> None:
    ftw = models(KINDS[kind])
    engine = small(ftw, park_bytes=host_bytes(ftw, 3), park_dir=tmp_path)
    truth = engine_of(ftw, on=False)
    assert go_on(engine, truth, talk(engine, truth, PARKED)) == [NEW] * PARKED
    assert cache(engine).parked_file_bytes > 0
    engine.close()


@pytest.mark.parametrize("kind", SHORT)
def test_next_engine_goes_on_from_what_the_last_one_wrote(
    kind: str, models: Models, tmp_path: Path
) -> None:
    ftw = models(KINDS[kind])
    memory = {"park_bytes": host_bytes(ftw, PARKED), "park_dir": tmp_path}
    engine, truth = small(ftw, **memory), engine_of(ftw, on=False)
    texts = talk(engine, truth, 6)
    engine.drain()
    engine.stop()
    engine.run()
    engine = small(ftw, **memory)
    assert go_on(engine, truth, texts) == [NEW] * 6
    assert engine.metrics.prompt_tokens == 6 * NEW
    engine.close()


def test_salt_keeps_parked_texts_apart(models: Models, tmp_path: Path) -> None:
    ftw = models("llama")
    memory = {"park_bytes": host_bytes(ftw, 3), "park_dir": tmp_path}
    engine, truth = small(ftw, **memory), engine_of(ftw, on=False)
    texts = talk(engine, truth, 8, salt="one")
    assert min(go_on(engine, truth, texts, salt="two")) > 90
    engine.park()
    engine.close()
    engine = small(ftw, **memory)
    assert min(go_on(engine, truth, texts, salt="three")) > 90
    assert go_on(engine, truth, texts, salt="one") == [NEW] * 8
    engine.close()


@pytest.mark.parametrize("kind", ["full", "state"])
def test_damaged_files_are_computed_again(
    kind: str, models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ftw = models(KINDS[kind])
    memory = {"park_bytes": host_bytes(ftw, PARKED), "park_dir": tmp_path}
    engine, truth = small(ftw, **memory), engine_of(ftw, on=False)
    texts = talk(engine, truth, 6)
    engine.park()
    engine.close()
    written = sorted(tmp_path.glob("*.park"))
    damaged = written[: len(written) // 2]  # of the texts that were used before the others
    for path in damaged:
        data = bytearray(path.read_bytes())
        data[-7] ^= 4
        path.write_bytes(bytes(data))
    engine = small(ftw, **memory)
    computed = go_on(engine, truth, texts)
    assert NEW in computed
    assert max(computed) > 90
    told = [item for item in caplog.records if "is of no use" in item.message]
    assert 0 < len(told) <= len(damaged)
    engine.close()


def test_files_of_another_model_or_setting_are_not_used(models: Models, tmp_path: Path) -> None:
    ftw, other = models("llama"), models("gemma3")
    engine, truth = small(ftw, park_dir=tmp_path), engine_of(ftw, on=False)
    texts = talk(engine, truth, 3)
    engine.park()
    engine.close()
    assert list(tmp_path.glob("*.park"))
    stranger = small(other, park_dir=tmp_path)
    assert cache(stranger).parked_file_bytes == 0
    stranger.close()
    assert not list(tmp_path.glob("*.park"))
    engine = small(ftw, park_dir=tmp_path)
    assert min(go_on(engine, truth, texts)) > 90
    engine.close()


def test_full_disk_costs_nothing_but_what_is_not_kept(
    models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ftw = models("llama")
    engine = small(ftw, park_bytes=host_bytes(ftw, 3), park_dir=tmp_path)
    truth = engine_of(ftw, on=False)
    faults.arm("files.write=error:ENOSPC")
    try:
        go_on(engine, truth, talk(engine, truth, PARKED))
    finally:
        faults.arm("")
    assert sum("cannot go to" in item.message for item in caplog.records) == 1
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    engine.close()


def test_files_stay_below_their_limit(models: Models, tmp_path: Path) -> None:
    ftw = models("llama")
    page, _ = sizes(ftw)
    limit = 4 * PAGES * page
    memory = {
        "park_bytes": host_bytes(ftw, 2),
        "park_dir": tmp_path,
        "park_disk_bytes": limit,
    }
    engine, truth = small(ftw, **memory), engine_of(ftw, on=False)
    texts = talk(engine, truth, PARKED)
    engine.park()
    engine.close()
    assert 0 < sum(path.stat().st_size for path in tmp_path.glob("*.park")) <= limit
    engine = small(ftw, **memory)
    assert go_on(engine, truth, texts[-2:]) == [NEW] * 2  # the newest were kept
    engine.close()


def test_folder_in_use_is_told_and_left_alone(models: Models, tmp_path: Path) -> None:
    ftw = models("llama")
    first = small(ftw, park_dir=tmp_path)
    second = small(ftw, park_dir=tmp_path)
    assert any("parked in memory only" in note for note in second.info.notes)
    assert cache(second).parked_file_limit_bytes == 0
    first.close()


def play(engine: Engine, truth: Engine, seeds: range, turns: int) -> None:
    scripts = [Script(seed) for seed in seeds]
    rng = random.Random(seeds.start)
    for _ in range(turns):
        asked = [script.request() for script in scripts]
        found, expected = engine.generate_sync(asked), truth.generate_sync(asked)
        engine.scheduler.check_integrity()
        parked = engine.scheduler.reuse.parked
        assert parked is not None
        parked.check_integrity()
        for script, request, mine, theirs in zip(scripts, asked, found, expected, strict=True):
            assert mine.token_ids == theirs.token_ids, request.request_id
            script.go_on(theirs.token_ids)
        if rng.random() < 0.3:
            engine.scheduler.reuse.tree.evict(rng.randint(1, 30))


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("kind", SHORT)
def test_edited_conversations_get_the_tokens_they_get_without_parking(
    kind: str, disk: bool, models: Models, tmp_path: Path
) -> None:
    ftw = models(KINDS[kind])
    memory: dict[str, Any] = {"park_dir": tmp_path} if disk else {}
    few = 2 if disk else 8
    engine = small(ftw, 2, parallel=4, park_bytes=host_bytes(ftw, few), **memory)
    truth = engine_of(ftw, on=False, parallel=4)
    play(engine, truth, range(10), turns=4)
    assert cache(engine).returned_tokens > 0
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_edited_conversations_get_the_same_tokens_at_length(
    kind: str, part: int, models: Models, tmp_path: Path
) -> None:
    ftw = models(KINDS[kind])
    memory: dict[str, Any] = {"park_dir": tmp_path} if part % 2 else {}
    engine = small(ftw, 2, parallel=4, park_bytes=host_bytes(ftw, 1 + part), **memory)
    truth = engine_of(ftw, on=False, parallel=4)
    play(engine, truth, range(20 * part, 20 * part + 20), turns=8)
    engine.close()


class Held:
    """Files that cannot be read before `free` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.threads: list[str] = []
        read = ParkFolder.read

        def held(folder: ParkFolder, rank: int, numbers: Sequence[int]) -> Any:
            self.threads.append(threading.current_thread().name)
            assert self.free.wait(60)
            return read(folder, rank, numbers)

        monkeypatch.setattr(ParkFolder, "read", held)


def left_in_files(ftw: Path, folder: Path, truth: Engine) -> tuple[Engine, tuple[int, ...]]:
    """An engine for two whose folder has a text with its next words, and the first stream."""
    memory = {"park_bytes": host_bytes(ftw, PARKED), "park_dir": folder}
    engine = small(ftw, parallel=2, **memory)
    (text,) = talk(engine, truth, 1)
    engine.park()
    engine.close()
    return small(ftw, parallel=2, **memory), (*text, *random_ids(8, seed=5))


def start(engine: Engine, request: GenerateRequest) -> list[Any]:
    """Send a request and take one step. Returns its events, which grow."""
    events: list[Any] = []
    engine.submit(request, events.append)
    engine._receive(wait=False)
    engine.step()
    return events


def to_end(engine: Engine) -> None:
    while engine.scheduler.has_work:
        engine.step()
    engine.scheduler.check_integrity()


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("kind", ["full", "state"])
def test_streams_go_on_while_files_are_read(
    kind: str,
    damaged: bool,
    models: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ftw = models(KINDS[kind])
    truth = engine_of(ftw, on=False)
    engine, ids = left_in_files(ftw, tmp_path, truth)
    for path in tmp_path.glob("*.park") if damaged else ():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    held = Held(monkeypatch)
    streaming = ask("stream", random_ids(20, seed=9), max_tokens=40)
    stream = start(engine, streaming)
    back = start(engine, ask("back", ids))
    before = len(stream)
    for _ in range(10):
        engine.step()
    assert len(stream) == before + 10
    assert engine.scheduler.num_waiting == 1
    held.free.set()
    to_end(engine)
    results = result_of(stream), result_of(back)
    assert [item.token_ids for item in results] == [
        one(truth, request).token_ids for request in (streaming, ask("back", ids))
    ]
    assert cached(results[1]) == (0 if damaged else len(ids) - NEW)
    assert set(held.threads) == {"ft-park-read"}
    assert any("is of no use" in item.message for item in caplog.records) == damaged
    engine.close()


def test_request_that_is_cancelled_while_its_files_are_read_leaves_nothing(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ftw = models("llama")
    truth = engine_of(ftw, on=False)
    engine, ids = left_in_files(ftw, tmp_path, truth)
    held = Held(monkeypatch)
    start(engine, ask("stream", random_ids(20, seed=9), max_tokens=40))
    back = start(engine, ask("back", ids))
    engine.abort("back")
    engine._receive(wait=False)
    assert back[-1].reason == "abort"
    assert not engine.scheduler.reuse._readings
    held.free.set()
    to_end(engine)
    assert cache(engine).returned_tokens == 0
    again = one(engine, ask("again", ids))
    assert again.token_ids == one(truth, ask("again", ids)).token_ids
    assert cached(again) == len(ids) - NEW
    engine.close()


def test_request_left_alone_waits_for_its_files(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream runs any more that a wait could hold up."""
    ftw = models("llama")
    truth = engine_of(ftw, on=False)
    engine, ids = left_in_files(ftw, tmp_path, truth)
    held = Held(monkeypatch)
    start(engine, ask("stream", random_ids(20, seed=9), max_tokens=2))
    back = start(engine, ask("back", ids))
    assert engine.scheduler.num_running == 0
    freeing = threading.Timer(0.02, held.free.set)
    freeing.start()
    to_end(engine)
    freeing.join()
    assert cached(result_of(back)) == len(ids) - NEW
    assert result_of(back).token_ids == one(truth, ask("back", ids)).token_ids
    assert held.threads == ["ft-park-read"]
    engine.close()


@pytest.mark.parametrize("kind", ["full", "state"])
def test_what_is_parked_ahead_stays_on_the_device_and_costs_no_copy_later(
    kind: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    ftw = models(KINDS[kind])
    engine = small(ftw, park_bytes=host_bytes(ftw, PARKED))
    truth = engine_of(ftw, on=False)
    texts = talk(engine, truth, ON_DEVICE + 2)  # they fill it
    parked, reuse = engine._loaded.memory.parked, engine.scheduler.reuse
    before, kinds = cache(engine), []
    parked.park_ahead(lambda: False)
    assert cache(engine).parked_bytes == before.parked_bytes
    parked.park_ahead(lambda: True)
    assert cache(engine).parked_bytes > before.parked_bytes
    assert cache(engine).evicted_pages == before.evicted_pages == 0
    assert not reuse.park_ahead()
    copy = engine.runner.copy
    monkeypatch.setattr(
        engine.runner,
        "copy",
        lambda items: (kinds.extend(item.kind for item in items), copy(items)),
    )
    one(engine, ask("other", random_ids(30, seed=77)))
    assert cache(engine).evicted_pages > 0
    assert "park_page" not in kinds
    assert go_on(engine, truth, texts) == [NEW] * len(texts)


@pytest.mark.parametrize("kind", ["park_page", "return_page", "park_state", "return_state"])
def test_copy_left_out_is_noticed(
    kind: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparisons above can fail."""
    ftw = models("qwen3_5")
    engine = small(ftw, park_bytes=host_bytes(ftw, PARKED))
    truth = engine_of(ftw, on=False)
    copy = engine.runner.copy
    monkeypatch.setattr(
        engine.runner, "copy", lambda items: copy([item for item in items if item.kind != kind])
    )
    with pytest.raises(AssertionError):
        go_on(engine, truth, talk(engine, truth, 8))


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_what_gives_way_when_memory_shrinks_is_parked(family: str, models: Models) -> None:
    ftw = models(family)
    engine = small(ftw, 6, park_bytes=host_bytes(ftw, PARKED))
    truth = engine_of(ftw, on=False)
    texts = talk(engine, truth, 5)
    page = engine.runner.pool.bytes_per_page
    engine.resize_sync(MemoryRequest(kv_bytes=PAGES * page))
    assert go_on(engine, truth, texts) == [NEW] * 5


def test_failed_step_leaves_what_was_parked_before(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    ftw = models("llama")
    engine, truth = small(ftw), engine_of(ftw, on=False)
    texts = talk(engine, truth, 8)
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise RuntimeError("a kernel broke")

        patch.setattr(engine.runner, "run", broken)
        assert one(engine, ask("b", random_ids(50, seed=50))).error is not None
    assert go_on(engine, truth, texts[:2]) == [NEW] * 2  # they had left the device


def test_engine_that_is_only_stopped_writes_nothing(models: Models, tmp_path: Path) -> None:
    ftw = models("llama")
    engine, truth = small(ftw, park_dir=tmp_path), engine_of(ftw, on=False)
    talk(engine, truth, 2)
    engine.stop()
    engine.run()
    assert not list(tmp_path.glob("*.park"))


def test_writing_ends_when_the_time_is_over(
    models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ftw = models("llama")
    engine, truth = small(ftw, park_dir=tmp_path), engine_of(ftw, on=False)
    talk(engine, truth, 3)
    parking = engine._loaded.memory.parked.parking
    assert parking is not None
    engine.scheduler.reuse.park(lambda: True)
    left = iter((True, False))
    with caplog.at_level(logging.INFO):
        assert not parking.write_all(lambda: next(left))
    assert len(list(tmp_path.glob("*.park"))) == 1
    engine.close()


@pytest.mark.parametrize("kind", ["full", "state"])
def test_what_was_used_last_is_written_where_there_is_no_time_for_all(
    kind: str, models: Models, tmp_path: Path
) -> None:
    """The device holds more than host memory: the rest must not take all of the time."""
    ftw = models(KINDS[kind])
    memory: dict[str, Any] = {"park_bytes": host_bytes(ftw, 2), "park_dir": tmp_path}
    engine, truth = small(ftw, 8, **memory), engine_of(ftw, on=False)
    texts = talk(engine, truth, 8)
    left = 1.0

    def time_left() -> float:
        nonlocal left
        left -= 0.02 if left > 0.5 else 0.15
        return left

    write_all(engine._loaded.memory.parked, engine.scheduler, time_left)
    engine.close()
    engine = small(ftw, 8, **memory)
    assert go_on(engine, truth, texts[-1:]) == [NEW]
    engine.close()


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--park-dir .* files are written from memory"):
        MemoryConfig(park_bytes=0, park_dir=tmp_path)
    with pytest.raises(RequestError, match="--park-disk-bytes 5 is not valid"):
        MemoryConfig(park_disk_bytes=5)
    with pytest.raises(RequestError, match=r"--park-bytes -1 is not valid"):
        MemoryConfig(park_bytes=-1)
    memory = MemoryConfig(park_dir=tmp_path)
    with pytest.raises(RequestError, match=r"--no-prefix-cache"):
        EngineConfig(tmp_path, prefix_cache=False, memory=memory)


def test_more_memory_than_there_is_is_refused(models: Models) -> None:
    with pytest.raises(CapacityError, match=r"--park-bytes \d+ .* bytes are free"):
        engine_of(models("llama"), park_bytes=1 << 50)


def test_memory_for_less_than_a_page_is_told(models: Models) -> None:
    engine = engine_of(models("llama"), park_bytes=10)
    assert any("conversations are not parked" in note for note in engine.info.notes)
    assert dataclasses.replace(cache(engine), enabled=True).parked_limit_bytes == 0

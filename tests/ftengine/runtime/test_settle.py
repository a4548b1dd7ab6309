"""An engine is ready with its experts in the page cache, and has them in own memory later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftengine.errors import FormatError
from ftengine.loader.borrowed import BorrowedBanks
from ftengine.loader.cached_file import CachedFile
from ftengine.loader.ftw import ALIGN_BYTES, FtwModel
from ftengine.runtime import settle
from ftengine.runtime.engine import Engine
from ftengine.runtime.settle import Settling
from tests.fakes.tiny_models import sizes_of
from tests.ftengine.parity.tiny_engines import greedy, load_engine, make_tiny, random_ids

PROMPTS = [random_ids(count, seed=count) for count in (5, 17, 33)]


@pytest.fixture(scope="module")
def ftw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = sizes_of("mixtral", num_experts=8, top_k=2)
    return make_tiny("mixtral", tmp_path_factory.mktemp("settle"), sizes=sizes)[1]


def left(engine: Engine) -> int:
    assert engine._assembled is not None
    return engine._assembled.borrowed.left_bytes


def tokens(engine: Engine) -> list[Any]:
    return [item.token_ids for item in greedy(engine, PROMPTS, 12)]


def test_tokens_are_the_same_read_borrowed_and_moved(
    ftw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_FIRST_PAUSE_S", 60.0)
    engine = load_engine(ftw)
    if not left(engine):
        pytest.skip("this system does not map what the page cache holds")
    with FtwModel.open(ftw) as model:
        embed = model.index.tensor("embed")
        assert embed is not None
        pages = -(-embed.bytes // ALIGN_BYTES) * ALIGN_BYTES
        assert left(engine) == pages + sum(bank.bytes for bank in model.index.banks)
    borrowed = tokens(engine)
    assert left(engine) > 0
    engine.settle()
    assert left(engine) == 0
    assert tokens(engine) == borrowed
    engine.close()
    monkeypatch.setattr(CachedFile, "find", lambda *_: None)
    plain = load_engine(ftw)
    assert left(plain) == 0
    assert tokens(plain) == borrowed
    assert plain.info.weights_bytes == engine.info.weights_bytes
    assert plain.progress.loaded_bytes == engine.progress.loaded_bytes
    plain.close()


def test_a_flipped_bit_is_found_where_the_file_is_mapped(ftw: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for item in ftw.iterdir():
        (own / item.name).write_bytes(item.read_bytes())
    shard = own / "weights-00000.ftw"
    data = bytearray(shard.read_bytes())
    data[-4096] ^= 1
    shard.write_bytes(data)
    with pytest.raises(FormatError, match=r"weights-00000\.ftw is damaged \(block 0"):
        load_engine(own)


class Banks(BorrowedBanks):
    """Counts what is asked of it."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.on_move: Callable[[], None] = lambda: None

    @property
    def left_bytes(self) -> int:
        return self.parts

    def move_part(self) -> bool:
        if not self.parts:
            return False
        self.parts -= 1
        self.on_move()
        return True


def test_all_is_moved_when_nothing_else_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_FIRST_PAUSE_S", 0.0)
    banks = Banks(5)
    settling = Settling(banks, busy=lambda: False)
    settling.start()
    assert settling._thread is not None
    settling._thread.join(10)
    assert not banks.parts


def test_beside_requests_there_are_pauses_until_it_is_hurried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(settle, "_BUSY_PAUSE_S", 60.0)
    banks = Banks(5)
    settling = Settling(banks, busy=lambda: True)
    settling.start()
    settling.finish()
    assert not banks.parts


def test_closing_leaves_the_rest_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(settle, "_BUSY_PAUSE_S", 60.0)
    banks = Banks(5)
    settling = Settling(banks, busy=lambda: True)
    settling.start()
    settling.close()
    assert banks.parts >= 4


def test_memory_that_others_need_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_FIRST_PAUSE_S", 0.0)
    free = [0, 0, 1 << 40]
    monkeypatch.setattr(settle, "available_bytes", lambda: free.pop(0) if free else None)
    monkeypatch.setattr(settle, "_BUSY_PAUSE_S", 0.0)
    banks = Banks(1)
    settling = Settling(banks, busy=lambda: False)
    settling.start()
    assert settling._thread is not None
    settling._thread.join(10)
    assert not free
    assert not banks.parts


def test_hurry_ends_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "available_bytes", lambda: 0)
    banks = Banks(1)
    settling = Settling(banks, busy=lambda: False)
    settling.start()
    settling.finish()
    assert banks.parts == 1


def test_what_comes_first_is_done_once_even_with_nothing_to_move() -> None:
    done: list[int] = []
    settling = Settling(BorrowedBanks(), busy=lambda: False, first=lambda: done.append(1))
    settling.start()
    settling.finish()
    assert done == [1]
    settling.close()
    assert done == [1]

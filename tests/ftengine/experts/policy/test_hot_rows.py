"""Which rows are worth being locked: those read most, within the budget, without flapping."""

from __future__ import annotations

import random

import pytest

from ftengine.experts.policy.hot_rows import Change, HotRows

ROW = 100


def rows(budget: int, every: int = 1, sizes: tuple[int, ...] = (ROW, ROW)) -> HotRows:
    hot = HotRows(budget, every)
    for number, size in enumerate(sizes):
        assert hot.add_bank(size) == number
    return hot


def test_rows_read_most_are_held() -> None:
    hot = rows(2 * ROW, every=12)
    for number in range(4):
        hot.demand(0, [1, 2])
        hot.demand(1, [5] if number % 2 else [])
        change = hot.demand(0, [1])
    assert change == Change((), ((0, 1), (0, 2)))
    assert hot.held == {(0, 1), (0, 2)}


def test_what_is_no_longer_read_goes() -> None:
    hot = rows(ROW, every=50)
    for _ in range(50):
        hot.demand(0, [3])
    assert hot.held == {(0, 3)}
    changes = [change for _ in range(200) if (change := hot.demand(1, [4]))]
    assert changes == [Change(((0, 3),), ((1, 4),))]
    assert hot.held == {(1, 4)}


def test_rows_read_alike_do_not_take_turns() -> None:
    hot = rows(ROW)
    first = hot.demand(0, [0])
    assert first is not None
    assert all(hot.demand(0, [number % 2]) is None for number in range(100))


def test_small_rows_fill_what_a_large_one_leaves() -> None:
    hot = rows(250, every=4, sizes=(200, 50))
    for _ in range(4):
        hot.demand(0, [0, 1])
        hot.demand(1, [7])
    assert hot.held == {(1, 7), (0, 0)}
    assert hot.held_bytes == 250


@pytest.mark.parametrize("budget", [0, ROW - 1, ROW, 3 * ROW + 50, 10**9])
def test_budget_is_kept_whatever_is_read(budget: int) -> None:
    draw = random.Random(budget)
    hot = rows(budget, every=3, sizes=(ROW, 2 * ROW, 30))
    locked: set[tuple[int, int]] = set()
    for _ in range(600):
        change = hot.demand(draw.randrange(3), draw.sample(range(12), 3))
        if change is None:
            continue
        assert set(change.unlock) <= locked
        assert not set(change.lock) & locked
        locked = (locked - set(change.unlock)) | set(change.lock)
        assert locked == hot.held
        assert hot.held_bytes <= budget
    assert bool(locked) == (budget >= 30)


def test_scores_do_not_overflow() -> None:
    hot = rows(ROW, every=1000)
    for _ in range(200_000):
        hot.demand(0, [2])
    for _ in range(3000):
        hot.demand(0, [9])
    assert hot.held == {(0, 9)}


def test_giving_up_is_for_good() -> None:
    hot = rows(ROW)
    hot.demand(0, [0])
    assert hot.give_up() == ((0, 0),)
    assert all(hot.demand(0, [0]) is None for _ in range(10))
    assert not hot.held

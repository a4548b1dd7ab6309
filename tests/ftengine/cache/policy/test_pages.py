"""The page allocator against a naive model: a set of free ids and a counter per page."""

from __future__ import annotations

import random

import pytest

from ftengine.cache.policy.pages import PageAllocator, pages_for


def test_pages_for_counts_the_last_page_whole() -> None:
    assert [pages_for(n) for n in (0, 1, 16, 17, 32, 33)] == [0, 1, 1, 2, 2, 3]


def test_allocation_is_all_or_nothing() -> None:
    pages = PageAllocator(3)
    assert pages.allocate(2) == [0, 1]
    assert pages.allocate(2) is None
    assert pages.num_free == 1
    assert pages.allocate(1) == [2]


def test_shared_page_survives_until_its_last_holder_releases_it() -> None:
    pages = PageAllocator(2)
    (page,) = pages.allocate(1) or []
    pages.share([page])
    pages.release([page])
    assert pages.num_free == 1
    pages.release([page])
    assert pages.num_free == 2


def test_double_release_is_caught() -> None:
    pages = PageAllocator(1)
    taken = pages.allocate(1) or []
    pages.release(taken)
    with pytest.raises(AssertionError):
        pages.release(taken)


def test_pool_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PageAllocator(0)


@pytest.mark.parametrize("seed", range(5))
def test_random_use_matches_a_naive_model(seed: int) -> None:
    rng = random.Random(seed)
    pages, counts = PageAllocator(20), [0] * 20
    for _ in range(2000):
        held = [page for page in range(20) if counts[page]]
        action = rng.choice(["allocate", "share", "release"])
        if action == "allocate":
            count = rng.randint(0, 8)
            taken = pages.allocate(count)
            assert (taken is None) == (count > counts.count(0))
            for page in taken or []:
                assert counts[page] == 0
                counts[page] = 1
        elif held:
            page = rng.choice(held)
            counts[page] += 1 if action == "share" else -1
            (pages.share if action == "share" else pages.release)([page])
        assert pages.num_free == counts.count(0)
        pages.check_integrity()


def test_resize_moves_only_what_lies_beyond_the_new_end() -> None:
    pages = PageAllocator(8)
    held = pages.allocate(8) or []
    pages.share([6])
    pages.release([0, 2, 3, 5])
    assert pages.resize(5) == {6: 0, 7: 2}
    pages.check_integrity()
    assert pages.num_free == 1
    pages.release([0])
    assert pages.num_free == 1  # shared: one holder is left
    pages.release([0])
    assert pages.num_free == 2
    assert pages.resize(9) == {}
    assert (pages.num_pages, pages.num_free) == (9, 6)
    with pytest.raises(ValueError, match="3 pages are held, a pool of 2 is too small"):
        pages.resize(2)
    assert held == list(range(8))


def test_random_resizes_keep_every_held_page() -> None:
    draw = random.Random(4)
    pages, held = PageAllocator(12), list[int]()
    for _ in range(500):
        held += pages.allocate(draw.randint(0, 3)) or []
        draw.shuffle(held)
        gone, held = held[:2], held[2:]
        pages.release(gone)
        moves = pages.resize(max(1, draw.randint(len(held), 20)))
        held = [moves.get(page, page) for page in held]
        pages.check_integrity()
        assert len(set(held)) == len(held)
        assert pages.num_free == pages.num_pages - len(held)

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

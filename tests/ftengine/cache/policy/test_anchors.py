"""Which positions of a prompt keep a checkpoint."""

from __future__ import annotations

from ftengine.cache.policy.anchors import FALLBACK_TOKENS, choose_anchors


def test_anchors_after_the_start_and_the_place_before_the_last_token() -> None:
    assert choose_anchors((10, 30, 50, 99), 30, 100, 8) == [50, 99]
    assert choose_anchors((), 0, 100, 8) == [99]
    assert choose_anchors((40,), 98, 100, 8) == [99]
    assert choose_anchors((), 99, 100, 8) == []


def test_long_text_without_anchors_gets_some() -> None:
    found = choose_anchors((5000,), 0, 9000, 100)
    gaps = [after - before for before, after in zip([0, *found], found, strict=False)]
    assert max(gaps) <= 1.5 * FALLBACK_TOKENS
    assert min(gaps) >= FALLBACK_TOKENS // 2
    assert {5000, 8999} <= set(found)


def test_too_many_keep_the_newest_and_some_of_the_rest() -> None:
    anchors = tuple(range(10, 1000, 10))
    found = choose_anchors(anchors, 0, 1001, 12)
    assert len(found) == 12
    assert found[-6:] == [950, 960, 970, 980, 990, 1000]
    assert found[:6] == sorted(set(found[:6]))
    assert found[0] < 200
    assert choose_anchors(anchors, 0, 1001, 1) == [1000]

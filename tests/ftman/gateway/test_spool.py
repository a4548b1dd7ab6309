"""Request bodies are collected whole, bounded, and let go."""

from __future__ import annotations

import random

import pytest

from ftman.gateway.spool import SMALL_BYTES, Spool


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES])
def test_what_was_written_comes_back(size: int) -> None:
    rng = random.Random(size)
    data = rng.randbytes(size)
    spool = Spool(4 * SMALL_BYTES)
    at = 0
    while at < size:
        step = rng.randint(1, SMALL_BYTES)
        assert spool.write(data[at : at + step])
        at += step
    assert spool.size == size
    assert spool.take() == data
    assert spool.take() == b""


def test_above_the_limit_nothing_is_kept() -> None:
    spool = Spool(SMALL_BYTES + 10)
    assert spool.write(b"x" * (SMALL_BYTES + 10))
    assert not spool.write(b"y")
    assert spool.size == SMALL_BYTES + 11
    assert spool.take() == b""

"""Bytes needed against bytes free."""

from __future__ import annotations

import pytest

from ftman.supervisor.fit import Fit, judge_fit
from ftman.supervisor.policy_events import Memory


@pytest.mark.parametrize(
    ("need", "available", "loaded", "answer"),
    [
        (4, 10, (), Fit.FITS),
        (10, 10, (), Fit.FITS),
        (11, 10, (), Fit.NEVER),
        (8, 10, (9,), Fit.EVICT),
        (4, 2, (3,), Fit.EVICT),
        (6, 2, (3,), Fit.NEVER),
        (17, 16, (), Fit.NEVER),
        (17, 10, (9,), Fit.NEVER),
    ],
    ids=["free", "to the byte", "short", "promised", "evict", "not even then", "total", "sum"],
)
def test_judge_fit(need: int, available: int, loaded: tuple[int, ...], answer: Fit) -> None:
    assert judge_fit(need, Memory(16, available), loaded) is answer

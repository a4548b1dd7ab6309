"""Synthetic traces are seeded and fitted; recorded ones are read with the place of any fault."""

from __future__ import annotations

import io

import pytest

from ftengine.errors import FormatError
from ftengine.experts.traces import Locality, Shape, read_trace, synthetic, write_trace
from ftengine.forecast.locality import (
    deepseek_like,
    layer_split_misses,
    lru_misses,
    qwen_like,
    static_misses,
)

SMALL = Shape(2, 16, 4, 3, 10)


def test_the_same_seed_gives_the_same_trace() -> None:
    locality = Locality(0.3, 1.0, 0.1)
    assert synthetic(SMALL, locality, 1) == synthetic(SMALL, locality, 1)
    assert synthetic(SMALL, locality, 1).steps != synthetic(SMALL, locality, 2).steps


def test_a_token_names_distinct_experts() -> None:
    trace = synthetic(SMALL, Locality(0.9, 2.0, 0.5), 4)
    for token in (*trace.prompt, *trace.steps):
        assert all(len(set(experts)) == 4 for experts in token)
        assert all(0 <= e < 16 for experts in token for e in experts)


def test_a_trace_survives_its_file() -> None:
    trace = synthetic(SMALL, Locality(0.3, 1.0, 0.1), 1)
    stream = io.StringIO()
    write_trace(trace, stream)
    assert read_trace(stream.getvalue().splitlines(), "x.jsonl") == trace


HEADER = '{"trace": 1, "num_layers": 1, "num_experts": 4, "num_experts_per_tok": 2}'


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([], "not a routing trace"),
        (["["], "x.jsonl:1 is not JSON"),
        (['{"trace": 2}'], "version 1"),
        (['{"trace": 1, "num_layers": 0}'], "num_layers"),
        ([HEADER, '{"phase": "later"}'], "x.jsonl:2: phase"),
        ([HEADER, '{"phase": "decode", "experts": [[0], [1]]}'], "list 1 layers"),
        ([HEADER, '{"phase": "decode", "experts": [[4]]}'], "below 4"),
        ([HEADER, '{"phase": "decode", "experts": [[true]]}'], "below 4"),
    ],
)
def test_a_bad_trace_names_the_line(lines: list[str], named: str) -> None:
    with pytest.raises(FormatError, match=named):
        read_trace(lines, "x.jsonl")


def test_locality_is_the_one_it_was_fitted_to() -> None:
    qwen, deepseek = qwen_like(6, 400, 11), deepseek_like(6, 400, 11)
    assert lru_misses(qwen, 0.37) == pytest.approx(0.16, abs=0.015)
    assert lru_misses(deepseek, 0.11) == pytest.approx(0.39, abs=0.025)
    assert static_misses(qwen, 0.37) == pytest.approx(0.41, abs=0.06)
    assert static_misses(deepseek, 0.11) == pytest.approx(0.59, abs=0.06)


@pytest.mark.parametrize("share", [0.11, 0.37, 0.65])
def test_following_routing_misses_least(share: float) -> None:
    trace = qwen_like(6, 250, 5)
    assert lru_misses(trace, share) < static_misses(trace, share) < layer_split_misses(trace, share)


def test_a_whole_pool_in_slots_never_misses() -> None:
    assert layer_split_misses(qwen_like(2, 150, 5), 1.0) == 0.0

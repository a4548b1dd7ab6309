"""Requests of real clients with a broken value: an answer or a clear error, never a 500."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from tests.ftman.gateway.openai.scripted import ScriptedService, ask
from tests.ftman.gateway.openai.test_clients import CASES

VALUES: list[Any] = [
    None, True, -1, 2.5, 10**30, "", "x", "\ud800", [], [[]], [None], {}, {"a": 1}, {"type": "x"},
    [{"type": "function"}], [{"role": "user"}], {"type": "namespace", "name": "n", "tools": [5]},
    "auto", {"type": "json_schema"}, {"type": "function", "name": 5},
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a body."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    return [(value, key) for key in keys] + [p for key in keys for p in places(value[key])]


def break_and_ask(case: str, rounds: int) -> None:
    (path, body), _ = CASES[case]
    rng = random.Random(case)
    service = ScriptedService()
    for _ in range(rounds):
        broken = copy.deepcopy(body)
        for _ in range(rng.randint(1, 2)):
            container, key = rng.choice(places(broken))
            container[key] = copy.deepcopy(rng.choice(VALUES))
        reply = ask(service, path, broken)
        assert reply.status_code in (200, 400, 404), (json.dumps(broken), reply.text)
        if reply.status_code != 200:
            assert reply.json()["error"]["message"]


@pytest.mark.parametrize("case", list(CASES))
def test_a_broken_value_is_an_answer_or_a_clear_error(case: str) -> None:
    break_and_ask(case, 8)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_many_broken_values(case: str) -> None:
    break_and_ask(case, 400)

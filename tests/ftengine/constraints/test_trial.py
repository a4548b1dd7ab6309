"""Hostile grammars: each dies in the trial process, and the refusal names the limit."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace

import pytest

from ftengine.constraints.grammar import grammar_of
from ftengine.constraints.trial import Job, run_trial
from ftengine.errors import RequestError
from ftengine.protocol import Constraint

ANYTHING = Job("start: /(.|\\n)*/", 600, (2,), {2: "<|im_end|>", 500: "</think>"})


def job(kind: str, text: str) -> Job:
    return replace(ANYTHING, grammar=grammar_of(Constraint(kind, text)))


def optional_words(count: int) -> str:
    return "start: T\nT: " + " ".join(f'("a{n}")?' for n in range(count))


def chain(count: int) -> str:
    rules = "\n".join(f"r{n}: r{n + 1}" for n in range(count))
    return f'start: r0\n{rules}\nr{count}: "a"'


def crossing_patterns(count: int) -> str:
    rng = random.Random(1)
    patterns = [".*" + "".join(rng.choices("ab", k=8)) + ".*" for _ in range(count)]
    return json.dumps({"allOf": [{"type": "string", "pattern": text} for text in patterns]})


def test_good_grammar_passes() -> None:
    verdict = run_trial(ANYTHING)
    assert (verdict.error, verdict.warnings) == ("", ())
    assert 0 <= verdict.memory_bytes < 32 << 20


@pytest.mark.parametrize(
    "grammar", ['start: "yes"', 'start: "yes" | "no"', "start: /[0-9]/", chain(500)]
)
def test_text_that_is_forced_passes(grammar: str) -> None:
    assert run_trial(job("lark", grammar)).error == ""


def test_special_tokens_are_known_by_name_and_by_number() -> None:
    for mark in ("</think>", "<[500]>"):
        assert run_trial(job("lark", f'start: "a" {mark} "b"')).error == ""
    assert "unknown special token" in run_trial(job("lark", "start: <nope>")).error


def test_grammar_that_breaks_after_its_first_token_is_found() -> None:
    names = {f"p{n}": {"type": "string"} for n in range(2500)}
    verdict = run_trial(job("json_schema", json.dumps({"type": "object", "properties": names})))
    assert "2000" in verdict.error


def test_errors_do_not_repeat_the_grammar() -> None:
    verdict = run_trial(job("regex", "(" + "secret" * 1000))
    assert verdict.error
    assert len(verdict.error) < 600


def test_rules_nested_too_deeply_are_refused() -> None:
    with pytest.raises(RequestError, match="nested too deeply") as caught:
        run_trial(job("lark", chain(60_000)))
    assert caught.value.code == "bad_constraint"


@pytest.mark.skipif(sys.platform == "darwin", reason="the system does not enforce RLIMIT_AS")
def test_grammar_that_takes_too_much_memory_is_refused() -> None:
    hungry = replace(job("lark", optional_words(4000)), memory_bytes=8 << 20)
    with pytest.raises(RequestError, match="more than 8 MB of memory"):
        run_trial(hungry)


def test_grammar_that_takes_too_long_is_refused() -> None:
    slow = replace(job("json_schema", crossing_patterns(30)), cpu_s=1, memory_bytes=8 << 30)
    with pytest.raises(RequestError, match="more than 1 s"):
        run_trial(slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        ("lark", optional_words(30_000)),
        ("json_schema", crossing_patterns(30)),
        ("regex", "a?" * 30_000 + "a" * 30_000),
    ],
)
def test_hostile_grammars_are_refused_under_the_real_limits(hostile: tuple[str, str]) -> None:
    def refuse() -> None:
        verdict = run_trial(job(*hostile))
        raise RequestError(verdict.error)

    with pytest.raises(RequestError, match=r"\w"):
        refuse()

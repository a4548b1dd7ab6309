"""Replies held to a grammar: always fulfilled, whatever runs beside them, and never in the way."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from ftengine.constraints import compiler
from ftengine.constraints.trial import Job, Verdict
from ftengine.protocol import (
    Constraint,
    ErrorEvent,
    Event,
    FinishEvent,
    GenerateRequest,
    Sampling,
    TokenEvent,
)
from ftengine.runtime.engine import Engine
from ftengine.runtime.outcomes import Result
from tests.ftengine.parity.tiny_engines import load_engine, random_ids

COLOURS = Constraint(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "colour": {"enum": ["red", "blue"]},
                "count": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["colour", "count"],
            "additionalProperties": False,
        }
    ),
)
THREE_DIGITS = Constraint("regex", "[0-9]{3}")


@pytest.fixture(scope="module")
def engine(ftw: Path) -> Engine:
    """One engine for the module: compiled grammars are kept."""
    return load_engine(ftw)


@pytest.fixture(scope="module")
def tokenizer(ftw: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(ftw / "tokenizer.json"))


def asked(name: str, constraint: Constraint | None, seed: int = 1, **more: Any) -> GenerateRequest:
    sampling = more.pop("sampling", Sampling(temperature=1.5, seed=seed))
    count = more.pop("max_tokens", 120)
    prompt = random_ids(more.pop("count", 9), seed=seed)
    return GenerateRequest(name, prompt, sampling, count, constraint=constraint, **more)


def text_of(tokenizer: tokenizers.Tokenizer, result: Result) -> str:
    assert result.error is None, result.error
    text: str = tokenizer.decode(list(result.token_ids), skip_special_tokens=False)
    return text


def run(engine: Engine, request: GenerateRequest) -> Result:
    return engine.generate_sync([request])[0]


@pytest.mark.parametrize("seed", range(8))
def test_reply_fulfils_its_schema_and_then_stops(
    engine: Engine, tokenizer: tokenizers.Tokenizer, seed: int
) -> None:
    result = run(engine, asked("a", COLOURS, seed))
    value = json.loads(text_of(tokenizer, result))
    assert value["colour"] in ("red", "blue")
    assert 0 <= value["count"] <= 99
    assert list(value) == ["colour", "count"]
    assert result.finish is not None
    assert result.finish.reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_json_mode_gives_one_object(
    engine: Engine, tokenizer: tokenizers.Tokenizer, temperature: float
) -> None:
    brace = tokenizer.token_to_id("}")
    sampling = Sampling(temperature=temperature, seed=3, logit_bias=((brace, 20.0),))
    result = run(engine, asked("a", Constraint("json"), sampling=sampling))
    assert isinstance(json.loads(text_of(tokenizer, result)), dict)
    assert result.finish is not None
    assert result.finish.reason == "stop"


@pytest.mark.parametrize(
    ("constraint", "replies"),
    [
        (Constraint("lark", 'start: "maybe"'), {"maybe"}),
        (Constraint("lark", 'start: "yes" | "no"'), {"yes", "no"}),
        (Constraint("json_schema", '{"const": "the sky is blue"}'), {'"the sky is blue"'}),
    ],
)
def test_only_what_the_grammar_says(
    engine: Engine, tokenizer: tokenizers.Tokenizer, constraint: Constraint, replies: set[str]
) -> None:
    results = engine.generate_sync([asked(f"r{seed}", constraint, seed) for seed in range(12)])
    assert {text_of(tokenizer, result) for result in results} == replies
    assert {result.finish.reason for result in results if result.finish} == {"stop"}


def test_complete_reply_stops_without_a_stop_token(
    engine: Engine, tokenizer: tokenizers.Tokenizer
) -> None:
    result = run(engine, asked("a", THREE_DIGITS))
    assert re.fullmatch("[0-9]{3}", text_of(tokenizer, result))
    assert result.finish is not None
    assert (result.finish.reason, result.finish.stop_token_id) == ("stop", None)


def test_complete_at_the_last_token_is_a_stop_and_cut_before_it_a_length(
    engine: Engine, tokenizer: tokenizers.Tokenizer
) -> None:
    whole = run(engine, asked("a", THREE_DIGITS))
    exact = run(engine, asked("b", THREE_DIGITS, max_tokens=len(whole.token_ids)))
    short = run(engine, asked("c", THREE_DIGITS, max_tokens=len(whole.token_ids) - 1))
    assert exact.finish is not None
    assert short.finish is not None
    assert (exact.finish.reason, short.finish.reason) == ("stop", "length")
    assert short.token_ids == exact.token_ids[:-1]


def test_stop_token_only_where_the_grammar_is_fulfilled(
    engine: Engine, tokenizer: tokenizers.Tokenizer
) -> None:
    eager = Sampling(logit_bias=((0, 50.0), (2, 60.0)))
    result = run(engine, asked("a", Constraint("regex", "[ab]{2,9}"), sampling=eager))
    assert re.fullmatch("[ab]{2}", text_of(tokenizer, result))
    assert result.finish is not None
    assert (result.finish.reason, result.finish.stop_token_id) == ("stop", 2)


def test_stop_token_of_the_request_counts_like_the_model_s(
    engine: Engine, tokenizer: tokenizers.Tokenizer
) -> None:
    own = tokenizer.token_to_id("z")
    eager = Sampling(logit_bias=((own, 60.0), (2, -100.0)))
    request = asked("a", Constraint("regex", "[ab]{2,9}"), sampling=eager, stop_token_ids=(own,))
    result = run(engine, request)
    assert re.fullmatch("[ab]{2}", text_of(tokenizer, result))
    assert result.finish is not None
    assert result.finish.stop_token_id == own


@pytest.mark.parametrize("mark", ["<|im_start|>", "<[1]>"])
def test_special_tokens_bind_in_lark_by_name_and_by_id(
    engine: Engine, tokenizer: tokenizers.Tokenizer, mark: str
) -> None:
    grammar = f"start: thought {mark} answer\nthought: /(.|\\n){{0,12}}/\nanswer: %json " + "{}"
    grammar = grammar.replace("{}", COLOURS.text)
    result = run(engine, asked("a", Constraint("lark", grammar), seed=5))
    assert result.token_ids.count(1) == 1
    at = result.token_ids.index(1)
    assert 0 not in result.token_ids
    assert json.loads(tokenizer.decode(list(result.token_ids[at + 1 :])))["colour"]
    assert result.finish is not None
    assert result.finish.reason == "stop"


def test_mask_comes_before_the_filters(engine: Engine, tokenizer: tokenizers.Tokenizer) -> None:
    narrow = Sampling(temperature=1.0, top_k=1, top_p=0.01, min_p=0.9, seed=4)
    result = run(engine, asked("a", THREE_DIGITS, sampling=narrow))
    assert re.fullmatch("[0-9]{3}", text_of(tokenizer, result))


def test_logprobs_are_the_model_s_own(engine: Engine) -> None:
    request = asked("a", THREE_DIGITS, logprobs=3)
    result = run(engine, request)
    truth = torch.log_softmax(
        engine.runner.logits((*request.token_ids, *result.token_ids)).double(), dim=-1
    )
    for index, item in enumerate(result.logprobs):
        row = truth[len(request.token_ids) + index - 1]
        assert item.logprob == pytest.approx(float(row[item.token_id]), abs=1e-5)
        assert [top[0] for top in item.top] == row.topk(3).indices.tolist()


def test_company_changes_no_token(ftw: Path, engine: Engine) -> None:
    requests = [
        asked("a", COLOURS, 1),
        asked("b", None, 2, max_tokens=30, count=60),
        asked("c", THREE_DIGITS, 3),
        asked("d", Constraint("json"), 4, max_tokens=30, count=40),
        asked("e", COLOURS, 5, count=33),
    ]
    alone = [run(engine, request).token_ids for request in requests]
    chunked = load_engine(ftw, step_tokens=16)
    for company in (engine, chunked):
        together = company.generate_sync(requests)
        assert [result.token_ids for result in together] == alone


def test_preempted_reply_goes_on_in_its_grammar(ftw: Path, engine: Engine) -> None:
    any_size = load_engine(ftw, context=80)
    one_page = any_size.runner.pool.total_bytes // any_size.metrics.kv_pages
    tight = load_engine(ftw, context=80, step_tokens=16, kv_bytes=6 * one_page)
    words = Constraint("regex", "[a-z ]{60}")
    requests = [asked("a", words, 2, count=20), asked("b", words, 3, count=20)]
    run(tight, asked("first", words, max_tokens=1))  # compiled now, so that the two start together
    alone = [run(engine, request).token_ids for request in requests]
    together = tight.generate_sync(requests)
    assert tight.scheduler.num_preemptions > 0
    assert [result.token_ids for result in together] == alone


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint("regex", "(ab"), "unclosed group"),
        (Constraint("regex"), "empty"),
        (Constraint("lark", "start: nothing"), "nothing"),
        (Constraint("lark", "start: <|no_such|>"), "unknown special token"),
        (Constraint("json_schema", '{"type": "strin'), "not JSON"),
        (Constraint("json_schema", '{"type": "strin"}'), "strin"),
        (Constraint("json_schema", "[1]"), "must be an object"),
        (Constraint("json_schema", '{"$ref": "#/nowhere"}'), "nowhere"),
        (Constraint("json_schema", '{"$ref": "#"}'), "no reply can fulfil it"),
        (Constraint("regex", "a" * 1_000_001), "1000000 are the limit"),
    ],
)
def test_bad_constraint_is_refused_before_anything_else(
    engine: Engine, constraint: Constraint, words: str
) -> None:
    events: list[Event] = []
    engine.submit(asked("a", constraint), events.append)
    while not events:
        engine._receive(wait=True)
    assert len(events) == 1
    refusal = events[0]
    assert isinstance(refusal, ErrorEvent)
    assert refusal.code == "bad_constraint"
    assert words in refusal.message
    assert not engine.step()


def test_what_a_schema_cannot_bind_is_told(engine: Engine) -> None:
    schema = '{"type": "object", "properties": {"a": {"not": {"const": 1}, "enum": [1]}}}'
    result = run(engine, asked("a", Constraint("json_schema", schema), max_tokens=2))
    assert result.finish is not None
    assert "not enforced in full" in result.finish.notes[0]
    assert "not" in result.finish.notes[0]
    assert run(engine, asked("b", COLOURS)).finish.notes == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [None, b"{", b'{"model": {"vocab": {"a": 0}}}'])
def test_model_without_a_usable_tokenizer_says_so(
    ftw: Path, tmp_path: Path, content: bytes | None
) -> None:
    copy = tmp_path / "ftw"
    shutil.copytree(ftw, copy)
    engine = load_engine(copy)  # nobody reads the tokenizer before the first constraint
    (copy / "tokenizer.json").unlink()
    if content is not None:
        (copy / "tokenizer.json").write_bytes(content)
    for _ in range(2):
        error = run(engine, asked("a", THREE_DIGITS)).error
        assert error is not None
        assert error.code == "constraint_unsupported"
        assert "tokenizer.json" in error.message
    assert run(engine, asked("b", None, max_tokens=2)).finish is not None


class _Gate:
    """Compilations that take as long as the test likes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        patch.setattr(compiler, "run_trial", self._wait)

    def _wait(self, job: Job) -> Verdict:
        assert self.open.wait(30)
        return Verdict("", (), 0)


def test_other_replies_go_on_while_a_grammar_is_compiled(
    ftw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, engine = _Gate(monkeypatch), load_engine(ftw)
    slow: list[Event] = []
    engine.submit(asked("slow", THREE_DIGITS), slow.append)
    quick: list[Event] = []
    engine.submit(asked("quick", None, max_tokens=5), quick.append)
    engine._receive(wait=False)
    assert engine.health().waiting == 2
    while engine.step():
        pass
    assert isinstance(quick[-1], FinishEvent)
    assert not slow
    gate.open.set()
    while not slow:
        engine._receive(wait=True)
    while engine.step():
        pass
    assert isinstance(slow[-1], FinishEvent)
    assert slow[-1].queue_s > 0


def test_request_may_leave_while_its_grammar_is_compiled(
    ftw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, engine = _Gate(monkeypatch), load_engine(ftw)
    events: dict[str, list[Event]] = {"left": [], "twin": [], "stopped": []}
    engine.submit(asked("left", THREE_DIGITS), events["left"].append)
    engine.submit(asked("left", THREE_DIGITS), events["twin"].append)
    engine.submit(asked("stopped", THREE_DIGITS), events["stopped"].append)
    engine.abort("left")
    engine._receive(wait=False)
    assert [event.code for event in events["twin"] if isinstance(event, ErrorEvent)] == [
        "duplicate_request"
    ]
    assert isinstance(events["left"][0], ErrorEvent)
    engine.stop()
    engine._receive(wait=False)
    assert isinstance(events["stopped"][0], ErrorEvent)
    assert engine.health().waiting == 0
    gate.open.set()
    while engine._commands.get(timeout=60)():  # the late outcomes find nobody
        pass
    assert len(events["left"]) == len(events["stopped"]) == 1
    assert not engine.step()


def test_mask_that_fails_ends_its_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ftengine.constraints.matcher import TokenMatcher
    from ftengine.errors import EngineError

    real, calls = TokenMatcher._make_mask, []

    def failing(self: TokenMatcher) -> Any:
        calls.append(self)
        if len(calls) == 3:
            raise EngineError("too complex", code="constraint_failed")
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(TokenMatcher, "_make_mask", failing)
        alone = run(engine, asked("x", None, 2, max_tokens=10)).token_ids
        broken, fine = engine.generate_sync(
            [asked("a", COLOURS), asked("b", None, 2, max_tokens=10)]
        )
    assert broken.error is not None
    assert broken.error.code == "constraint_failed"
    assert fine.token_ids == alone
    assert engine.metrics.kv_pages_free == engine.metrics.kv_pages


def test_cost_is_on_the_metrics_page(ftw: Path) -> None:
    engine = load_engine(ftw)
    before = engine.metrics_text()
    assert "ft_engine_constraint_masks_total 0" in before
    result = run(engine, asked("a", COLOURS))
    assert engine.metrics.constraints == 1
    assert engine.metrics.constraint_masks == len(result.token_ids)
    assert engine.metrics.constraint_compile_s > 0
    assert engine.metrics.constraint_mask_s > 0
    assert "ft_engine_constraint_mask_seconds_total 0.0\n" not in engine.metrics_text()


def test_tokens_are_sent_as_they_come(engine: Engine) -> None:
    events: list[Event] = []
    engine.submit(asked("a", THREE_DIGITS), events.append)
    while not events:
        engine._receive(wait=True)
    while engine.step():
        pass
    kinds = [event.type for event in events]
    assert kinds[0] == "progress"
    assert kinds[-1] == "finish"
    assert sum(isinstance(event, TokenEvent) for event in events) >= 1

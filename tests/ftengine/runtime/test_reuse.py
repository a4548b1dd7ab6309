"""Tokens with the prefix cache on equal those with it off, whatever is done to a conversation."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.errors import CapacityError
from ftengine.protocol import Event, GenerateRequest, MemoryRequest, ProgressEvent, Sampling
from ftengine.runtime.engine import Engine
from ftengine.runtime.outcomes import Result
from ftengine.scheduler.reuse import Copy
from tests.fakes.tiny_hybrids import HYBRIDS
from tests.fakes.tiny_sparse import SPARSE_MODELS
from tests.ftengine.parity.tiny_engines import FAMILIES, make_tiny, random_ids
from tests.ftengine.runtime.edit_scripts import SAMPLING, Script

KINDS = {"full": "llama", "window": "gemma3", "state": "qwen3_5"}
SHORT = 50
TOGETHER = 10
TURNS = 3

Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Converts each family once."""
    made: dict[str, Path] = {}

    def model(family: str) -> Path:
        if family not in made:
            made[family] = make_tiny(family, tmp_path_factory.mktemp(family))[1]
        return made[family]

    return model


def engine_of(ftw: Path, on: bool = True, **more: Any) -> Engine:
    config = EngineConfig(
        ftw,
        context_tokens=144,
        num_parallel=8,
        step_tokens=96,
        prefix_cache=on,
        prefill_share=1.0,
        compute=ComputeConfig(compute="float32", threads=2),
        memory=MemoryConfig(**{"park_bytes": 0, **more}),
    )
    engine = Engine(config)
    engine.load()
    return engine


def play(engine: Engine, truth: Engine, seeds: range, turns: int = TURNS) -> int:
    """Run scripts side by side. Returns how many replies were compared."""
    scripts = [Script(seed) for seed in seeds]
    rng = random.Random(seeds.start)
    compared = 0
    for _ in range(turns):
        asked = [script.request() for script in scripts]
        found, expected = engine.generate_sync(asked), truth.generate_sync(asked)
        engine.scheduler.check_integrity()
        for script, request, mine, theirs in zip(scripts, asked, found, expected, strict=True):
            assert mine.finish is not None
            assert mine.token_ids == theirs.token_ids, request.request_id
            assert 0 <= mine.finish.cached_tokens < len(request.token_ids)
            script.go_on(theirs.token_ids)
            compared += 1
        if rng.random() < 0.3:
            engine.scheduler.reuse.tree.evict(rng.randint(1, 30))
    return compared


@pytest.mark.parametrize("kind", KINDS)
def test_edited_conversations_get_the_tokens_they_get_without_a_cache(
    kind: str, models: Models
) -> None:
    ftw = models(KINDS[kind])
    engine, truth = engine_of(ftw), engine_of(ftw, on=False)
    parts = [range(at, at + TOGETHER) for at in range(0, SHORT, TOGETHER)]
    assert sum(play(engine, truth, part) for part in parts) == SHORT * TURNS
    stats = engine.info.cache
    assert stats is not None
    assert stats.hit_tokens > 0.35 * stats.looked_up_tokens
    assert stats.evicted_pages > 0
    assert truth.info.cache is not None
    assert not truth.info.cache.enabled
    assert truth.info.cache.pages == 0


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SPARSE_MODELS else name
        for name in sorted({*FAMILIES, *HYBRIDS} - set(KINDS.values()))
    ],
)
def test_every_family_gets_the_tokens_it_gets_without_a_cache(family: str, models: Models) -> None:
    ftw = models(family)
    engine, truth = engine_of(ftw), engine_of(ftw, on=False)
    play(engine, truth, range(5), turns=2)
    stats = engine.info.cache
    assert stats is not None
    assert stats.hit_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_edited_conversations(kind: str, part: int, models: Models) -> None:
    ftw = models(KINDS[kind])
    memory: dict[str, Any] = {"checkpoint_bytes": 200_000} if part % 2 and kind == "state" else {}
    engine, truth = engine_of(ftw, **memory), engine_of(ftw, on=False)
    for at in range(50 * part, 50 * part + 50, TOGETHER):
        play(engine, truth, range(at, at + TOGETHER), turns=8)


@pytest.mark.parametrize("kind", ["page", "state"])
def test_scripts_notice_when_a_copy_is_left_out(
    kind: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above can fail."""
    ftw = models("lfm2_moe")
    engine, truth = engine_of(ftw), engine_of(ftw, on=False)
    copy = engine.runner.copy

    def careless(copies: list[Copy]) -> None:
        copy([item for item in copies if item.kind != kind])

    monkeypatch.setattr(engine.runner, "copy", careless)
    with pytest.raises(AssertionError):
        play(engine, truth, range(SHORT), turns=3)


def ask(name: str, ids: tuple[int, ...], **more: Any) -> GenerateRequest:
    return GenerateRequest(name, ids, SAMPLING, max_tokens=more.pop("max_tokens", 4), **more)


def one(engine: Engine, request: GenerateRequest) -> Result:
    result = engine.generate_sync([request])[0]
    engine.scheduler.check_integrity()
    return result


def cached(result: Result) -> int:
    assert result.finish is not None
    return result.finish.cached_tokens


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_prompt_asked_again_costs_one_token(family: str, models: Models) -> None:
    engine = engine_of(models(family))
    ids = random_ids(70)
    assert cached(one(engine, ask("a", ids))) == 0
    assert cached(one(engine, ask("b", ids))) == 69


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_appended_conversation_computes_what_is_new(family: str, models: Models) -> None:
    engine = engine_of(models(family))
    ids = random_ids(45)
    first = one(engine, ask("a", ids, max_tokens=9))
    longer = (*ids, *first.token_ids, *random_ids(20, seed=3))
    assert cached(one(engine, ask("b", longer))) == 45 + 8  # the last reply token is never computed


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_salt_keeps_texts_apart(family: str, models: Models) -> None:
    engine = engine_of(models(family))
    ids = random_ids(60)
    assert cached(one(engine, ask("a", ids, salt="one"))) == 0
    assert cached(one(engine, ask("b", ids, salt="two"))) == 0
    assert cached(one(engine, ask("c", ids, salt="one"))) == 59


def test_state_is_resumed_at_an_anchor_and_at_a_token_that_closes_a_block(models: Models) -> None:
    engine = engine_of(models("qwen3_5"))
    ids = random_ids(60)
    first = one(engine, ask("a", ids, anchors=(23,), max_tokens=12))
    assert cached(one(engine, ask("b", (*ids[:23], *random_ids(30, seed=5))))) == 23
    assert cached(one(engine, ask("c", (*ids[:22], *random_ids(30, seed=6))))) == 0
    closer = first.token_ids[5]
    engine = engine_of(models("qwen3_5"))
    one(engine, ask("a", ids, anchor_token_ids=(closer,), max_tokens=12))
    cut = (*ids, *first.token_ids[:6], *random_ids(30, seed=7))
    assert cached(one(engine, ask("d", cut))) == 60 + first.token_ids.index(closer) + 1


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_agents_that_arrive_together_compute_their_prefix_once(family: str, models: Models) -> None:
    engine, truth = engine_of(models(family)), engine_of(models(family), on=False)
    prefix = random_ids(101)
    asked = [ask(f"a{i}", (*prefix, *random_ids(9, seed=i))) for i in range(6)]
    before = engine.metrics.prompt_tokens
    found = engine.generate_sync(asked)
    engine.scheduler.check_integrity()
    assert engine.metrics.prompt_tokens - before <= 101 + 6 * 9 + 6
    assert [item.token_ids for item in found] == [
        item.token_ids for item in truth.generate_sync(asked)
    ]
    assert [cached(item) for item in found] == [0, *[101] * 5]


def test_prompt_logprobs_and_embeddings_are_computed_in_full(models: Models) -> None:
    engine = engine_of(models("llama"))
    ids = random_ids(40)
    one(engine, ask("a", ids))
    again = one(engine, ask("b", ids, prompt_logprobs=True, logprobs=0))
    assert again.finish is not None
    assert again.finish.cached_tokens == 0
    assert len(again.finish.prompt_logprobs) == 40


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_preempted_sequence_goes_on_from_the_cache(family: str, models: Models) -> None:
    ftw = models(family)
    engine = engine_of(ftw)
    page = engine.runner.pool.bytes_per_page
    engine, truth = engine_of(ftw, kv_bytes=12 * page), engine_of(ftw, on=False)
    asked = [ask(f"p{i}", random_ids(40, seed=i), max_tokens=60) for i in range(4)]
    found, expected = engine.generate_sync(asked), truth.generate_sync(asked)
    engine.scheduler.check_integrity()
    assert engine.metrics.preemptions > 0
    assert [item.token_ids for item in found] == [item.token_ids for item in expected]


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_resized_memory_keeps_the_cache_where_it_fits(family: str, models: Models) -> None:
    ftw = models(family)
    engine, truth = engine_of(ftw), engine_of(ftw, on=False)
    page = engine.runner.pool.bytes_per_page
    old, new = random_ids(100), random_ids(100, seed=1)
    for name, ids in (("a", old), ("b", new)):
        one(engine, ask(name, ids))
    engine.resize_sync(MemoryRequest(kv_bytes=10 * page))
    engine.scheduler.check_integrity()
    engine.resize_sync(MemoryRequest(kv_bytes=40 * page))
    engine.scheduler.check_integrity()
    again = one(engine, ask("c", new))
    assert cached(again) == 99
    assert again.token_ids == one(truth, ask("c", new)).token_ids
    assert cached(one(engine, ask("d", old))) < 99


def test_reused_tokens_are_told_before_the_first_token(models: Models) -> None:
    engine = engine_of(models("llama"))
    ids = random_ids(60)
    one(engine, ask("a", ids))
    events: list[Event] = []
    engine.submit(ask("b", ids, max_tokens=2), events.append)
    engine.generate_sync([])
    assert events[:2] == [ProgressEvent(0, 60), ProgressEvent(60, 60, 59)]
    assert [event.type for event in events[2:]] == ["token", "token", "finish"]


def test_failed_step_is_not_built_upon(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(models("llama"))
    ids = random_ids(60)
    one(engine, ask("a", ids))
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise RuntimeError("a kernel broke")

        patch.setattr(engine.runner, "run", broken)
        assert one(engine, ask("b", ids)).error is not None
    assert cached(one(engine, ask("c", ids))) == 0


def test_room_for_less_than_one_state_is_refused(models: Models) -> None:
    with pytest.raises(CapacityError, match=r"--checkpoint-bytes 10 is less than one state"):
        engine_of(models("qwen3_5"), checkpoint_bytes=10)


def test_few_checkpoints_still_give_the_same_tokens(models: Models) -> None:
    ftw = models("lfm2_moe")
    one_state = engine_of(ftw).info.cache
    assert one_state is not None
    engine = engine_of(ftw, checkpoint_bytes=3 * one_state.checkpoint_bytes)
    play(engine, engine_of(ftw, on=False), range(20), turns=3)
    stats = engine.info.cache
    assert stats is not None
    assert stats.evicted_checkpoints > 0
    assert stats.checkpoints == 3


def test_sampled_replies_do_not_depend_on_the_cache(models: Models) -> None:
    warm = Sampling(temperature=1.1, seed=5, logit_bias=((0, -100.0), (1, -100.0), (2, -100.0)))
    engine = engine_of(models("llama"))
    ids = random_ids(50)
    asked = [GenerateRequest(name, ids, warm, max_tokens=20) for name in ("a", "b")]
    first, second = (one(engine, item) for item in asked)
    assert cached(second) == 49
    assert first.token_ids == second.token_ids

"""The scheduler driven by a fake model whose next token is a function of the tokens before it."""

from __future__ import annotations

import random
import zlib

import pytest

from ftengine.cache.policy.pages import PageAllocator, pages_for
from ftengine.errors import CapacityError, RequestError
from ftengine.protocol import GenerateRequest
from ftengine.scheduler.batch import Batch
from ftengine.scheduler.scheduler import SHORT_TOKENS, Scheduler, SchedulerLimits

VOCAB = 50
EOS = 7


def make(
    context: int = 64, places: int = 4, pages: int = 0, step: int = 512, waiting: int = 100
) -> Scheduler:
    limits = SchedulerLimits(context, places, step, waiting)
    return Scheduler(limits, PageAllocator(pages or pages_for(context) * places), {EOS})


def request(name: str, prompt: int, max_tokens: int = 8, **more: object) -> GenerateRequest:
    ids = tuple((zlib.crc32(name.encode()) + i) % VOCAB for i in range(prompt))
    return GenerateRequest(name, ids, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def next_token(tokens: list[int]) -> int:
    return zlib.crc32(repr(tokens).encode()) % VOCAB


def step(scheduler: Scheduler, now: float = 0.0) -> Batch | None:
    batch = scheduler.next_batch(now)
    if batch is None:
        return None
    chosen = {
        item.sequence.request.request_id: next_token(item.sequence.tokens)
        for item in batch.work
        if item.samples
    }
    for item in batch.work:
        assert item.start == item.sequence.num_computed
        assert item.samples == (item.start + item.num_tokens == len(item.sequence.tokens))
        assert len(item.sequence.pages) * 16 >= item.start + item.num_tokens
    scheduler.commit(batch, chosen, now)
    scheduler.check_integrity()
    return batch


def alone(item: GenerateRequest, context: int) -> tuple[list[int], str]:
    tokens = list(item.token_ids)
    limit = min(context, len(tokens) + item.max_tokens)
    while True:
        token = next_token(tokens)
        if len(tokens) >= limit:
            return tokens, "length"
        if token == EOS or token in item.stop_token_ids:
            return tokens, "stop"
        tokens.append(token)
        if len(tokens) >= limit:
            return tokens, "length"


@pytest.mark.parametrize("seed", range(20))
def test_every_request_ends_with_the_tokens_it_gets_alone(seed: int) -> None:
    rng = random.Random(seed)
    context = rng.choice([48, 64, 200])
    places = rng.randint(1, 5)
    few = pages_for(context) + rng.randint(0, 4)  # so few that preemption happens
    scheduler = make(context, places, pages=few, step=rng.choice([5, 16, 64, 512]))
    requests = [
        request(f"r{i}", rng.randint(1, context - 1), rng.randint(0, 60)) for i in range(12)
    ]
    pending, sequences = list(requests), []
    for now in range(20000):
        if pending and rng.random() < 0.3:
            sequences.append(scheduler.add(pending.pop(0), float(now)))
        if step(scheduler, float(now)) is None and not pending and not scheduler.has_work:
            break
    assert len(sequences) == len(requests)
    for item, sequence in zip(requests, sequences, strict=True):
        assert (sequence.tokens, sequence.reason) == alone(item, context)
    assert not scheduler.has_work


def test_preemption_happens_and_takes_the_youngest() -> None:
    scheduler = make(64, 2, pages=5)
    old = scheduler.add(request("old", 20, 44), 0.0)
    young = scheduler.add(request("young2", 20, 44), 0.0)
    while scheduler.has_work:
        step(scheduler)
    assert old.preemptions == 0
    assert young.preemptions > 0
    assert scheduler.num_preemptions == young.preemptions


def test_long_prompt_does_not_stall_running_streams() -> None:
    scheduler = make(4096, 2, step=256)
    scheduler.add(request("stream", 4, 200), 0.0)
    step(scheduler)
    long = scheduler.add(request("long", 3000, 4), 0.0)
    while long.num_computed < 3000:
        batch = step(scheduler)
        assert batch is not None
        assert batch.work[0].sequence.request.request_id == "stream" or batch.num_tokens <= 256
        assert batch.num_tokens <= 256
        assert any(item.sequence is not long for item in batch.work) or not any(
            s.request.request_id == "stream" for s in scheduler.sequences()
        )


def test_short_prompt_overtakes_chunks_of_a_long_one_and_both_advance() -> None:
    scheduler = make(4096, 3, step=256)
    long = scheduler.add(request("long", 3000, 4), 0.0)
    step(scheduler)
    short = scheduler.add(request("short", SHORT_TOKENS, 4), 0.0)
    batch = step(scheduler)
    assert batch is not None
    assert {item.sequence.request.request_id for item in batch.work} == {"long", "short"}
    assert short.num_computed == SHORT_TOKENS
    assert long.num_computed == 256 + 128


def test_only_one_long_prompt_advances_per_step() -> None:
    scheduler = make(4096, 3, step=2048)
    for name in ("a", "b"):
        scheduler.add(request(name, 1000, 4), 0.0)
    batch = step(scheduler)
    assert batch is not None
    assert [item.sequence.request.request_id for item in batch.work] == ["a"]


def test_first_come_first_served() -> None:
    scheduler = make(64, 1)
    for name in "abc":
        scheduler.add(request(name, 5, 1), 0.0)
    order = []
    while scheduler.has_work:
        batch = step(scheduler)
        assert batch is not None
        order += [item.sequence.request.request_id for item in batch.work]
    assert order == sorted(order)


def test_queue_is_bounded() -> None:
    scheduler = make(64, 1, waiting=2)
    for name in "ab":
        scheduler.add(request(name, 5), 0.0)
    with pytest.raises(RequestError, match="2 requests wait") as caught:
        scheduler.add(request("c", 5), 0.0)
    assert caught.value.code == "queue_full"
    assert caught.value.retryable


def test_same_id_twice_is_refused() -> None:
    scheduler = make()
    scheduler.add(request("a", 5), 0.0)
    with pytest.raises(RequestError, match="in use"):
        scheduler.add(request("a", 5), 0.0)


def test_prompt_of_a_full_context_is_refused_with_both_numbers() -> None:
    scheduler = make(context=64)
    scheduler.check(request("fits", 63), VOCAB)
    with pytest.raises(RequestError, match=r"64 tokens.*holds 64") as caught:
        scheduler.check(request("long", 64), VOCAB)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("bad", [-1, VOCAB])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    with pytest.raises(RequestError, match=str(bad)):
        make().check(GenerateRequest("a", (1, bad)), VOCAB)


def test_cancel_at_every_stage_gives_all_pages_back() -> None:
    for stage in range(6):
        scheduler = make(256, 2, step=32)
        sequences = [scheduler.add(request(name, 70, 20), 0.0) for name in "abc"]
        for _ in range(stage):
            step(scheduler)
        for sequence in sequences:
            scheduler.finish(sequence, "abort")
            scheduler.finish(sequence, "abort")
            scheduler.check_integrity()
        assert not scheduler.has_work
        assert scheduler.next_batch(0.0) is None


def test_deadline_is_reported_for_waiting_and_running() -> None:
    scheduler = make(64, 1)
    scheduler.add(request("runs", 5, 40, deadline_s=3.0), 10.0)
    scheduler.add(request("waits", 5, 40, deadline_s=1.0), 10.0)
    step(scheduler, 10.0)
    assert [s.request.request_id for s in scheduler.expired(11.5)] == ["waits"]
    assert [s.request.request_id for s in scheduler.expired(13.0)] == ["runs", "waits"]


def test_max_tokens_zero_computes_the_prompt_only() -> None:
    scheduler = make()
    sequence = scheduler.add(request("a", 5, 0), 0.0)
    step(scheduler)
    assert (sequence.num_generated, sequence.reason) == (0, "length")


def test_stop_token_of_the_request_ends_it() -> None:
    item = request("a", 5, 40)
    token = next_token(list(item.token_ids))
    scheduler = make()
    sequence = scheduler.add(request("a", 5, 40, stop_token_ids=(token,)), 0.0)
    step(scheduler)
    assert (sequence.reason, sequence.stop_token_id, sequence.num_generated) == ("stop", token, 0)


def test_pool_smaller_than_one_context_is_refused() -> None:
    with pytest.raises(CapacityError, match="3 KV pages"):
        make(64, 1, pages=3)


def test_shrinking_the_pages_preempts_the_youngest_and_loses_nothing() -> None:
    scheduler = make(context=64, places=4)
    for name in ("a", "b", "c", "d"):
        scheduler.add(request(name, 30, max_tokens=20), 0.0)
    for _ in range(3):
        step(scheduler)
    places = scheduler.resize_pages(5)
    assert [item.request.request_id for item in scheduler.sequences()] == ["a", "b", "c", "d"]
    assert (scheduler.num_running, scheduler.num_preemptions) == (2, 2)
    assert all(new < 5 for new in places.values())
    assert sorted(places.values()) == sorted(p for s in scheduler.sequences() for p in s.pages)
    scheduler.check_integrity()
    scheduler.resize_pages(20)
    live = list(scheduler.sequences())
    while step(scheduler) is not None:
        pass
    for sequence in live:
        expected, reason = alone(sequence.request, 64)
        assert (sequence.tokens, sequence.reason) == (expected, reason)


def test_pages_for_less_than_one_context_are_refused() -> None:
    scheduler = make(context=64, places=2)
    scheduler.add(request("a", 30), 0.0)
    step(scheduler)
    with pytest.raises(
        CapacityError, match=r"3 KV pages hold less than one context of 64.*needs 4"
    ):
        scheduler.resize_pages(3)
    scheduler.check_integrity()
    assert scheduler.num_running == 1


def test_input_to_embed_is_computed_and_chooses_nothing() -> None:
    scheduler = make(context=64, step=16)
    sequence = scheduler.add(request("e", 40, 0), 0.0, embeds=True)
    scheduler.add(request("g", 5, 3), 0.0)
    seen = 0
    while sequence.state != "finished":
        batch = scheduler.next_batch(0.0)
        assert batch is not None
        for item in batch.work:
            if item.sequence is sequence:
                assert not item.samples
                assert item.start == seen
                seen += item.num_tokens
        chosen = {item.sequence.request.request_id: 1 for item in batch.work if item.samples}
        ended = scheduler.commit(batch, chosen, 0.0)
        scheduler.check_integrity()
    assert seen == 40
    assert sequence in ended
    assert sequence.reason == "embedded"


def test_input_to_embed_may_fill_the_context() -> None:
    scheduler = make(context=64)
    scheduler.check_input(tuple(range(7)) * 9, VOCAB)
    scheduler.check_input((1,) * 64, VOCAB)
    with pytest.raises(RequestError, match="65 tokens and the context holds 64"):
        scheduler.check_input((1,) * 65, VOCAB)
    with pytest.raises(RequestError, match="inputs holds 50"):
        scheduler.check_input((1, 50), VOCAB)


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_token_that_completes_a_constraint_is_kept_and_stops(max_tokens: int) -> None:
    scheduler = make()
    sequence = scheduler.add(request("a", 5, max_tokens), 0.0)
    batch = scheduler.next_batch(0.0)
    assert batch is not None
    assert scheduler.commit(batch, {"a": 3}, 0.0, {"a"}) == [sequence]
    assert (sequence.reason, sequence.stop_token_id) == ("stop", None)
    assert sequence.tokens[-1] == 3

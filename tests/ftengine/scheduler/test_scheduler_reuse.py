"""The scheduler with a prefix cache, over pages and states that remember what was written there."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from ftengine.cache.policy.pages import PageAllocator, pages_for
from ftengine.protocol import GenerateRequest
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.reuse import ReuseLimits
from ftengine.scheduler.scheduler import Scheduler, SchedulerLimits
from ftengine.scheduler.sequence import common_tokens

CONTEXT = 120
EOS = 7


class Machine:
    """A scheduler and what a model would have in memory: the tokens seen, for each place."""

    def __init__(self, places: int, pages: int, step: int, checkpoints: int) -> None:
        self.stateful = checkpoints > 0
        self.scheduler = Scheduler(
            SchedulerLimits(CONTEXT, places, step),
            PageAllocator(pages),
            {EOS},
            ReuseLimits(True, self.stateful, checkpoints, places),
        )
        self.pages: list[list[Any]] = [[None] * 16 for _ in range(pages)]
        self.states: list[tuple[int, ...]] = [(-1,)] * (places + checkpoints)
        self.computed = 0

    def step(self) -> Batch | None:
        batch = self.scheduler.next_batch(0.0)
        for copy in self.scheduler.take_copies():
            if copy.kind == "page":
                self.pages[copy.target] = list(self.pages[copy.source])
            else:
                self.states[copy.target] = self.states[copy.source]
        if batch is None:
            return None
        chosen: dict[str, int] = {}
        for item in batch.work:
            self.compute(item)
            if item.samples:
                chosen[item.sequence.request.request_id] = next_token(item.sequence.tokens)
        self.scheduler.commit(batch, chosen, 0.0)
        self.scheduler.check_integrity()
        return batch

    def compute(self, item: Work) -> None:
        sequence, end = item.sequence, item.start + item.num_tokens
        for at in range(item.start):
            assert self.pages[sequence.pages[at // 16]][at % 16] == tuple(sequence.tokens[: at + 1])
        for at in range(item.start, end):
            self.pages[sequence.pages[at // 16]][at % 16] = tuple(sequence.tokens[: at + 1])
        self.computed += item.num_tokens
        if not self.stateful:
            return
        if item.start:
            assert self.states[sequence.state_slot] == tuple(sequence.tokens[: item.start])
        for at, slot in item.saves:
            assert item.start < at < end
            self.states[slot] = tuple(sequence.tokens[:at])
        self.states[sequence.state_slot] = tuple(sequence.tokens[:end])


def next_token(tokens: list[int]) -> int:
    return zlib.crc32(repr(tokens).encode()) % 50


def alone(item: GenerateRequest) -> tuple[list[int], str]:
    tokens = list(item.token_ids)
    limit = min(CONTEXT, len(tokens) + item.max_tokens)
    while True:
        token = next_token(tokens)
        if len(tokens) >= limit:
            return tokens, "length"
        if token == EOS:
            return tokens, "stop"
        tokens.append(token)
        if len(tokens) >= limit:
            return tokens, "length"


def random_request(rng: random.Random, number: int, texts: list[list[int]]) -> GenerateRequest:
    text = rng.choice(texts)
    ids = text[: rng.randint(0, len(text))] + rng.choices(range(50), k=rng.randint(1, 30))
    ids = ids[: CONTEXT - 1]
    anchors = tuple(sorted({rng.randint(1, len(ids)) for _ in range(3)}))
    return GenerateRequest(
        f"r{number}",
        tuple(ids),
        max_tokens=rng.randint(0, 30),
        anchors=anchors,
        anchor_token_ids=(3, 30),
        salt=rng.choice(("", "", "other")),
    )


@pytest.mark.parametrize("checkpoints", [0, 1, 2, 12])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_read_that_was_not_computed_and_every_reply_is_what_it_is_alone(
    seed: int, checkpoints: int
) -> None:
    rng = random.Random(seed)
    few = pages_for(CONTEXT) + rng.randint(0, 12)
    machine = Machine(rng.randint(1, 5), few, rng.choice([5, 16, 40, 200]), checkpoints)
    texts, live = [[1] * 40], []
    requests = 0
    while requests < 40 or machine.scheduler.has_work:
        if requests < 40 and rng.random() < 0.3:
            request = random_request(rng, requests, texts)
            live.append((request, machine.scheduler.add(request, 0.0)))
            requests += 1
        if live and rng.random() < 0.02:
            machine.scheduler.finish(live[-1][1], "abort")
        if rng.random() < 0.02:
            machine.scheduler.resize_pages(few)
        machine.step()
        texts = [list(sequence.tokens) for _, sequence in live][-8:] or texts
    for request, sequence in live:
        if sequence.reason != "abort":
            assert (sequence.tokens, sequence.reason) == alone(request)
    assert machine.scheduler.reuse.counters.hit > 0 or checkpoints in (1, 2)
    machine.scheduler.reuse.forget()
    machine.scheduler.check_integrity()
    assert machine.scheduler.reuse.num_available == few


def run(machine: Machine, *requests: GenerateRequest) -> list[Any]:
    sequences = [machine.scheduler.add(request, 0.0) for request in requests]
    while machine.step() is not None:
        pass
    return sequences


def ids(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(8, 50), k=count))


@pytest.mark.parametrize("checkpoints", [0, 20])
def test_prefix_of_prompts_that_arrive_together_is_computed_once(checkpoints: int) -> None:
    machine = Machine(6, 60, 32, checkpoints)
    prefix = ids(70)
    run(machine, *[GenerateRequest(f"a{i}", prefix + (i,) * 5, max_tokens=0) for i in range(6)])
    assert machine.computed == 70 + 6 * 5


def test_prompts_that_lead_each_other_in_a_chain_are_computed_once() -> None:
    machine = Machine(3, 60, 32, 0)
    first, second = ids(40), ids(30, 1)
    texts = (first + (1,) * 9, first + second + (2,) * 9, first + second + (3,) * 9)
    run(machine, *[GenerateRequest(f"a{i}", t, max_tokens=0) for i, t in enumerate(texts)])
    assert machine.computed == 40 + 30 + 3 * 9


def test_prompt_whose_leader_is_cancelled_goes_on_from_what_it_computed() -> None:
    machine = Machine(2, 60, 32, 0)
    prefix = ids(90)
    leader = machine.scheduler.add(GenerateRequest("a", prefix, max_tokens=0), 0.0)
    follower = machine.scheduler.add(GenerateRequest("b", prefix + ids(5, 1), max_tokens=0), 0.0)
    machine.step()
    assert (leader.num_computed, follower.num_computed) == (32, 0)
    machine.scheduler.finish(leader, "abort")
    while machine.step() is not None:
        pass
    assert machine.computed == 95
    assert follower.reason == "length"
    assert follower.num_cached == 32


def test_memory_pressure_takes_the_cache_before_it_preempts() -> None:
    machine = Machine(2, pages_for(CONTEXT) + 4, 200, 0)
    run(machine, GenerateRequest("old", ids(100), max_tokens=0))
    assert machine.scheduler.reuse.tree.num_pages == 7
    requests = [GenerateRequest(f"new{i}", ids(60, i + 5), max_tokens=20) for i in range(2)]
    run(machine, *requests)
    assert machine.scheduler.num_preemptions == 0
    assert machine.scheduler.reuse.tree.evicted_pages > 0


def test_smaller_memory_keeps_what_was_used_last() -> None:
    machine = Machine(2, 40, 200, 0)
    for number in range(4):
        run(machine, GenerateRequest(f"a{number}", ids(64, number), max_tokens=0))
    moved = machine.scheduler.resize_pages(9)
    for old, new in sorted(moved.items(), key=lambda item: item[1]):
        machine.pages[new] = machine.pages[old]
    machine.scheduler.check_integrity()
    newest = run(machine, GenerateRequest("again", ids(64, 3), max_tokens=0))[0]
    oldest = run(machine, GenerateRequest("gone", ids(64, 0), max_tokens=0))[0]
    assert (newest.num_cached, oldest.num_cached) == (63, 0)


def test_lost_and_forgotten_work_is_counted() -> None:
    machine = Machine(2, 40, 200, 20)
    run(machine, GenerateRequest("a", ids(60), max_tokens=0, anchors=(20,)))
    run(machine, GenerateRequest("b", ids(50) + ids(9, 1), max_tokens=0))
    counters = machine.scheduler.reuse.counters
    assert (counters.looked_up, counters.hit, counters.recomputed) == (119, 20, 30)


def test_common_beginnings() -> None:
    rng = random.Random(0)
    for _ in range(200):
        first = rng.choices((0, 1), k=rng.randint(0, 12))
        second = rng.choices((0, 1), k=rng.randint(0, 12))
        naive = 0
        while naive < min(len(first), len(second)) and first[naive] == second[naive]:
            naive += 1
        assert common_tokens(first, second) == naive

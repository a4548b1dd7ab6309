"""The timed turns of cache_reuse.py: W4 on a real model, with reuse, without, by llama.cpp.

What a turn cost is kept as plain values, so that a later run can go on after the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import WorkerProcess, peer_python
from benchmarks.workloads import Conversation, workload
from ftengine.config import ComputeConfig, EngineConfig
from ftengine.protocol import Event, FinishEvent, GenerateRequest, Sampling, TokenEvent
from ftengine.runtime.engine import Engine

CONTEXT = 8192
"""What the timed model was made for; all of W4 at scale 0.25 fits."""
VOCAB = (1000, 40_000)
COMPARED = 16
"""Tokens of a reply that are computed without reuse too."""

Asked = tuple[list[int], list[int], int]
"""Prompt, anchors in it, tokens to generate."""


@dataclass
class Turn:
    """What one turn cost. Units: seconds; tokens of the prompt that were computed."""

    first_s: float
    decode_s: float
    computed: int
    tokens: list[int]


@dataclass
class TimedTurn:
    """One turn of W4. without_s, theirs_s: to the first token, without reuse and by llama.cpp.

    theirs_s and theirs_decode_s are 0 while llama.cpp has not been asked.
    """

    prompt: list[int]
    ours: Turn
    without_s: float
    same: bool
    theirs_s: float = 0.0
    theirs_decode_s: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of our reply."""
        return len(self.ours.tokens) / self.ours.decode_s

    def plain(self) -> dict[str, object]:
        """For a file."""
        return asdict(self)

    @staticmethod
    def of(plain: dict[str, Any]) -> TimedTurn:
        """From a file."""
        return TimedTurn(**{**plain, "ours": Turn(**plain["ours"])})


def sampling(engine: Engine) -> Sampling:
    """Nothing ends a reply early. Not greedy: random models repeat one token, and then the end of
    what was cut looks like what follows it."""
    ends = sorted(engine.scheduler.eos_ids | {0, 1, 2})
    bias = tuple((idx, -100.0) for idx in ends)
    return Sampling(temperature=1.0, seed=11, logit_bias=bias)


def run_turns(engine: Engine, asked: Sequence[Asked]) -> list[Turn]:
    """Prompts that arrive together, to their ends."""
    events: list[list[tuple[float, Event]]] = [[] for _ in asked]
    started = time.perf_counter()
    for number, (ids, anchors, count) in enumerate(asked):
        request = GenerateRequest(
            f"t{number}", tuple(ids), sampling(engine), count, anchors=tuple(anchors)
        )
        engine.submit(request, _recorder(events[number]))
    results = engine.generate_sync([])
    assert not results
    return [_turn(items, started) for items in events]


def timed(
    ftw: Path, scale: float, threads: int, before: Sequence[TimedTurn], most: int
) -> Iterator[TimedTurn]:
    """W4 with reuse and without, turn by turn, after those of `before`; `most` turns at most."""
    with_reuse, without = (_engine(ftw, threads, on) for on in (True, False))
    agent: Conversation = workload("W4", scale, VOCAB)[0]
    for turn in before:
        ids, anchors, _ = agent.prompt()
        assert ids == turn.prompt, "the turns of before are of another conversation"
        run_turns(with_reuse, [([*ids, *turn.ours.tokens], anchors, 1)])
        agent.reply(turn.ours.tokens)
    while not agent.is_over and most > 0:
        most -= 1
        ids, anchors, count = agent.prompt()
        ours = run_turns(with_reuse, [(ids, anchors, count)])[0]
        other = run_turns(without, [(ids, anchors, min(count, COMPARED))])[0]
        same = other.tokens == ours.tokens[: len(other.tokens)]
        turn = TimedTurn(ids, ours, other.first_s, same)
        agent.reply(ours.tokens)
        print(
            f"turn {agent.turn}: prompt {len(ids)}, computed {ours.computed}, "
            f"first token {ours.first_s:.3f} s, without reuse {other.first_s:.3f} s, "
            f"{turn.rate:.1f} tokens/s",
            flush=True,
        )
        yield turn
    for engine in (with_reuse, without):
        engine.close()


def ask_peer(gguf: Path, turns: Sequence[TimedTurn], threads: int) -> None:
    """The same turns by llama.cpp, whose own prompt cache keeps the last text."""
    worker = WorkerProcess(peer_python(), "worker_llama.py")
    worker.ask(load=str(gguf), threads=threads, context=CONTEXT)
    for number, turn in enumerate(turns, start=1):
        started = time.perf_counter()
        turn.theirs_s = float(worker.ask(turn=turn.prompt, reply=turn.ours.tokens)["seconds"])
        turn.theirs_decode_s = time.perf_counter() - started - turn.theirs_s
        print(f"turn {number}: llama.cpp's first token {turn.theirs_s:.3f} s", flush=True)
    worker.close()


def _engine(ftw: Path, threads: int, prefix_cache: bool) -> Engine:
    compute = ComputeConfig(threads=threads)
    engine = Engine(EngineConfig(ftw, CONTEXT, prefix_cache=prefix_cache, compute=compute))
    engine.load()
    engine.settle()
    run_turns(engine, [([5, 6, 7], [], 8)])
    return engine


def _recorder(into: list[tuple[float, Event]]) -> Callable[[Event], None]:
    return lambda event: into.append((time.perf_counter(), event))


def _turn(items: list[tuple[float, Event]], started: float) -> Turn:
    at_s = [when for when, event in items if isinstance(event, TokenEvent)]
    tokens = [t for _, event in items if isinstance(event, TokenEvent) for t in event.token_ids]
    finish = items[-1][1]
    if not isinstance(finish, FinishEvent):
        raise RuntimeError(f"a turn failed: {finish}")
    computed = finish.prompt_tokens - finish.cached_tokens
    return Turn(at_s[0] - started, at_s[-1] - at_s[0], computed, tokens)

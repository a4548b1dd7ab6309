"""What of agents' edited conversations is computed again, and what a turn costs beside no reuse.

`python -m benchmarks.cache_reuse MODEL.gguf [--scale 0.1] [--peer]`. Counts come from tiny random
models (full attention; three Gated DeltaNet layers to one of attention) at default settings: new =
tokens of a prompt that no text seen before begins with, recomputed_over_new = computed / new, the
worst of W1 to W4. Times come from MODEL.gguf on W4: every turn with the prefix cache on and off, in
turn; worst_ttft_over_no_reuse is the worst turn's ratio, the first turn included. last_over_first =
tokens per second of the last turn's reply over the first's. --peer: the same turns by llama.cpp
with its own prompt cache, one run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import WorkerProcess, peer_python, report
from benchmarks.workloads import Conversation, workload
from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.convert.local import convert_folder
from ftengine.protocol import Event, FinishEvent, GenerateRequest, Sampling, TokenEvent
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_hybrids import build_hybrid
from tests.fakes.tiny_models import TinySizes, build_tiny

KINDS = ("W1", "W2", "W3", "W4")
TINY_CONTEXT = 32_768
"""The tiny models' context: no text may be cut."""
TINY_VOCAB = (3, 300)
STATES = 16
"""Checkpoints of the hybrid: what the default budget gives Qwen3.6-35B-A3B, with 66 MB a state."""
REAL_CONTEXT = 2048
REAL_VOCAB = (1000, 40_000)


@dataclass
class Turn:
    """What one turn cost. Units: seconds; tokens of the prompt that were computed."""

    first_s: float
    decode_s: float
    computed: int
    tokens: list[int]


class Seen:
    """All texts computed so far: the least that must be computed of a new prompt."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}
        self._count = 0

    def new_tokens(self, ids: Sequence[int]) -> int:
        """Tokens of a prompt after the longest beginning seen; the last one always counts."""
        node = 0
        for at, token in enumerate(ids[:-1]):
            found = self._next.get((node, token))
            if found is None:
                return len(ids) - at
            node = found
        return 1

    def add(self, ids: Sequence[int]) -> None:
        """This text has been computed."""
        node = 0
        for token in ids:
            if (node, token) not in self._next:
                self._count += 1
                self._next[node, token] = self._count
            node = self._next[node, token]


def sampling(engine: Engine) -> Sampling:
    """Nothing ends a reply early. Not greedy: random models repeat one token, and then the end of
    what was cut looks like what follows it."""
    ends = sorted(engine.scheduler.eos_ids | {0, 1, 2})
    bias = tuple((idx, -100.0) for idx in ends)
    return Sampling(temperature=1.0, seed=11, logit_bias=bias)


def run_turns(engine: Engine, asked: Sequence[tuple[list[int], list[int], int]]) -> list[Turn]:
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


def count(engine: Engine, kind: str, scale: float) -> tuple[int, int]:
    """(computed, new) tokens of one kind of work."""
    waiting = workload(kind, scale, TINY_VOCAB)
    seen, computed, new = Seen(), 0, 0
    together = len(waiting) if kind == "W3" else 1
    while waiting:
        group, waiting = waiting[:together], waiting[together:]
        while not group[0].is_over:
            asked = [agent.prompt() for agent in group]
            turns = run_turns(engine, asked)
            for agent, (ids, _, _), turn in zip(group, asked, turns, strict=True):
                new += seen.new_tokens(ids)
                seen.add(ids)
                seen.add([*ids, *turn.tokens[:-1]])
                computed += turn.computed
                agent.reply(turn.tokens)
    return computed, new


def counts(folder: Path, scale: float) -> dict[str, dict[str, list[int]]]:
    """(computed, new) for each kind of cache and work."""
    sizes = TinySizes(context=TINY_CONTEXT)
    changes = {"max_position_embeddings": TINY_CONTEXT}
    models = {
        "full": build_tiny("llama", folder / "llama", sizes=sizes),
        "hybrid": build_hybrid("qwen3_5", folder / "qwen3_5", changes=changes),
    }
    found: dict[str, dict[str, list[int]]] = {}
    for name, source in models.items():
        ftw = folder / f"{name}-ftw"
        convert_folder(source, ftw)
        found[name] = {}
        for kind in KINDS:
            engine = counting_engine(ftw, name == "hybrid")
            found[name][kind] = list(count(engine, kind, scale))
            print(f"{name:7} {kind}  computed, new: {found[name][kind]}", flush=True)
    return found


def counting_engine(ftw: Path, hybrid: bool) -> Engine:
    """Default settings; states as few as large ones would be."""
    config = EngineConfig(ftw, num_parallel=4)
    if hybrid:
        probe = Engine(EngineConfig(ftw, 64))
        probe.load()
        cache = probe.info.cache
        assert cache is not None
        memory = MemoryConfig(checkpoint_bytes=STATES * cache.checkpoint_bytes)
        config = EngineConfig(ftw, num_parallel=4, memory=memory)
    engine = Engine(config)
    engine.load()
    return engine


def timed(
    gguf: Path, folder: Path, scale: float, threads: int
) -> list[tuple[Turn, Turn, list[int]]]:
    """W4 with reuse and without, turn by turn. Each: (with, without, prompt)."""
    convert_folder(gguf, folder / "real")
    engines = []
    for on in (True, False):
        compute = ComputeConfig(threads=threads)
        engine = Engine(
            EngineConfig(folder / "real", REAL_CONTEXT, prefix_cache=on, compute=compute)
        )
        engine.load()
        run_turns(engine, [([5, 6, 7], [], 8)])
        engines.append(engine)
    agent: Conversation = workload("W4", scale, REAL_VOCAB)[0]
    found = []
    while not agent.is_over:
        asked = agent.prompt()
        with_cache, without = (run_turns(engine, [asked])[0] for engine in engines)
        found.append((with_cache, without, asked[0]))
        print(
            f"turn {agent.turn}: prompt {len(asked[0])}, computed {with_cache.computed}, "
            f"first token {with_cache.first_s:.3f} s, without reuse {without.first_s:.3f} s",
            flush=True,
        )
        agent.reply(with_cache.tokens)
    return found


def peer_turns(gguf: Path, turns: list[tuple[Turn, Turn, list[int]]], threads: int) -> list[float]:
    """Seconds to the first token by llama.cpp, whose own prompt cache keeps the last text."""
    worker = WorkerProcess(peer_python(), "worker_llama.py")
    worker.ask(load=str(gguf), threads=threads, context=REAL_CONTEXT)
    found = [worker.ask(turn=prompt, reply=ours.tokens)["seconds"] for ours, _, prompt in turns]
    worker.close()
    return [float(item) for item in found]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--scale", type=float, default=0.25, help="sizes of the timed W4")
    parser.add_argument("--count-scale", type=float, default=0.25, help="sizes where tokens count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", action="store_true", help="also llama.cpp (FT_PEER_PYTHON)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        counted = counts(Path(name), given.count_scale)
        turns = timed(given.gguf, Path(name), given.scale, given.threads)
    ratios = {
        f"recomputed_over_new_{cache}": max(done / new for done, new in kinds.values())
        for cache, kinds in counted.items()
    }
    rates = [len(on.tokens) / on.decode_s for on, _, _ in turns]
    ratios["worst_ttft_over_no_reuse"] = max(on.first_s / off.first_s for on, off, _ in turns)
    ratios["median_ttft_over_no_reuse"] = statistics.median(
        on.first_s / off.first_s for on, off, _ in turns
    )
    ratios["last_over_first_decode"] = rates[-1] / rates[0]
    measured: dict[str, object] = {
        "computed_and_new": counted,
        "first_token_s": [round(on.first_s, 4) for on, _, _ in turns],
        "without_reuse_s": [round(off.first_s, 4) for _, off, _ in turns],
        "turns_with_other_tokens": sum(on.tokens != off.tokens for on, off, _ in turns),
    }
    if given.peer:
        theirs = peer_turns(given.gguf, turns, given.threads)
        measured["llamacpp_s"] = [round(item, 4) for item in theirs]
        ratios["worst_ttft_over_llamacpp"] = max(
            on.first_s / other for (on, _, _), other in zip(turns, theirs, strict=True)
        )
    report("cache_reuse", {key: round(value, 4) for key, value in ratios.items()}, measured)


if __name__ == "__main__":
    main()

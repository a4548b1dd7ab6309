"""Do running streams keep their rate while a long prompt is computed beside them?

`python -m benchmarks.long_prompt [--tokens 16000] [--share 0.17]`. Four streams of a random model
(llama, 8 layers of 256) write while a prompt is computed. Steps that only write and steps that also
compute a piece of the prompt alternate, so that a change of the machine hits both alike:
streams_kept = what all steps would have taken if they had only written / what they took.
prompt_beside_over_alone = what that costs the prompt; longest_gap_s = the longest wait of a stream
for its next token meanwhile; the rates before and after are told too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.common import report
from ftengine.config import PREFILL_SHARE, ComputeConfig, EngineConfig
from ftengine.convert.local import convert_folder
from ftengine.protocol import Event, FinishEvent, GenerateRequest, Sampling, TokenEvent
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_models import TinySizes, build_tiny

STREAMS = 4
SIZES = TinySizes(hidden=256, layers=8, head_dim=32, heads=8, kv_heads=2, inter=768, context=32_768)
BIAS = ((0, -100.0), (1, -100.0), (2, -100.0))
STREAM_TOKENS = 30_000
"""More than any stream gets to write."""


@dataclass
class Record:
    """When a request's tokens came, and its end."""

    at_s: list[float] = field(default_factory=list)
    num_events: int = 0
    finish: FinishEvent | None = None

    def take(self, event: Event) -> None:
        """Called by the engine with each event."""
        self.num_events += 1
        if isinstance(event, TokenEvent):
            self.at_s.append(time.perf_counter())
        elif isinstance(event, FinishEvent):
            self.finish = event
        elif event.type == "error":
            raise RuntimeError(f"a request failed: {event}")

    def rate(self, start_s: float, end_s: float) -> float:
        """Tokens per second between two times."""
        return sum(start_s <= at < end_s for at in self.at_s) / (end_s - start_s)

    def longest_gap(self, start_s: float, end_s: float) -> float:
        """Seconds, the longest wait for a token that came between two times."""
        inside = [at for at in self.at_s if start_s <= at < end_s]
        return max((b - a for a, b in pairwise(inside)), default=0.0)


def run_for(engine: Engine, seconds: float) -> tuple[float, float]:
    """Let the engine run. Returns (start, end)."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        engine._receive(wait=False)
        engine.step()
    return start, time.perf_counter()


@dataclass
class Beside:
    """Steps until a prompt's first token. Units: seconds of each step, by what it computed."""

    start_s: float
    end_s: float
    only_writing: list[float]
    with_prompt: list[float]

    @property
    def kept(self) -> float:
        """The streams' rate, of what it would be without the prompt."""
        plain = statistics.mean(self.only_writing)
        taken = sum(self.only_writing) + sum(self.with_prompt)
        return plain * (len(self.only_writing) + len(self.with_prompt)) / taken


def run_to_end(engine: Engine, record: Record) -> Beside:
    """Let the engine run until a request has its first token."""
    found = Beside(time.perf_counter(), 0.0, [], [])
    engine._receive(wait=False)
    while not record.at_s:
        before, started = record.num_events, time.perf_counter()
        engine.step()
        now = time.perf_counter()
        into = found.only_writing if record.num_events == before else found.with_prompt
        into.append(now - started)
    found.end_s = time.perf_counter()
    return found


def load(ftw: Path, share: float, threads: int) -> Engine:
    """An engine with room for the streams and the prompt."""
    engine = Engine(
        EngineConfig(
            ftw,
            SIZES.context,
            num_parallel=STREAMS + 1,
            prefix_cache=False,
            prefill_share=share,
            compute=ComputeConfig(threads=threads),
        )
    )
    engine.load()
    engine.settle()
    return engine


def measure(engine: Engine, tokens: int, quiet_s: float) -> dict[str, float]:
    """One run; see the top of this file."""
    rng = random.Random(1)
    prompt = tuple(rng.randrange(3, 300) for _ in range(tokens))
    alone = Record()
    engine.submit(GenerateRequest("alone", prompt, Sampling(), 1), alone.take)
    prompt_alone = run_to_end(engine, alone)
    streams = [Record() for _ in range(STREAMS)]
    for number, record in enumerate(streams):
        sampling = Sampling(temperature=1.0, seed=number, logit_bias=BIAS)
        request = GenerateRequest(f"s{number}", (5, 6, 7), sampling, STREAM_TOKENS)
        engine.submit(request, record.take)
    run_for(engine, quiet_s / 2)
    first = run_for(engine, quiet_s)
    late = Record()
    engine.submit(GenerateRequest("late", prompt[::-1], Sampling(), 1), late.take)
    beside = run_to_end(engine, late)
    last = run_for(engine, quiet_s)
    window = (beside.start_s, beside.end_s)
    rates = [sum(item.rate(*part) for item in streams) for part in (first, window, last)]
    for number in range(STREAMS):
        engine.abort(f"s{number}")
    engine._receive(wait=False)
    return {
        "streams_kept": beside.kept,
        "before_tokens_per_s": rates[0],
        "beside_tokens_per_s": rates[1],
        "after_tokens_per_s": rates[2],
        "prompt_alone_s": prompt_alone.end_s - prompt_alone.start_s,
        "prompt_beside_s": beside.end_s - beside.start_s,
        "longest_gap_s": max(item.longest_gap(*window) for item in streams),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--share", type=float, default=PREFILL_SHARE)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet-s", type=float, default=4.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        source = build_tiny("llama", Path(name) / "hf", sizes=SIZES)
        convert_folder(source, Path(name) / "ftw")
        engine = load(Path(name) / "ftw", given.share, given.threads)
        found = measure(engine, given.tokens, given.quiet_s)
    ratios = {
        "streams_kept": found["streams_kept"],
        "prompt_beside_over_alone": found["prompt_beside_s"] / found["prompt_alone_s"],
    }
    measured = {key: round(value, 4) for key, value in found.items()}
    measured |= {"prompt_tokens": given.tokens, "share": given.share}
    report("long_prompt", {key: round(value, 4) for key, value in ratios.items()}, measured)


if __name__ == "__main__":
    main()

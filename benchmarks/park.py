"""What it costs to bring a parked conversation back, beside a plain copy of as many bytes.

`python -m benchmarks.park [--tokens 2000] [--rounds 2]`. Sixteen conversations of random models
(full attention; three Gated DeltaNet layers to one of attention) on a device with room for four. In
every round each says a little more: it comes back, and others give way to it. Pages and states have
the bytes that small real models have: gpt-oss-20b's page has 0.79 MB, as the first model's here;
Qwen3.6-35B-A3B's has 0.33 MB and its state 63 MB, the second one's 0.26 and 13. Between two turns
the engine is idle for a moment, in which it parks ahead.

Cost = the time in which the step's work is chosen and its copies are done, in the step that brings
a conversation back. After each as many bytes (pages and states, both ways) are copied from one flat
buffer to another, as large as the KV pool and each time elsewhere in it. return_over_copy = cost /
time of torch's plain copy, by one thread or by as many as the engine has, whichever is faster this
time; the median over all returns (worst_ too). return_over_own_copy = cost / time of the same bytes
in one piece by the engine's own copy, which all threads do past the caches. return_over_recompute =
cost / time of the same turn without reuse. Replies are compared with those of an engine that
reuses nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.common import report
from ftengine.cache.policy.pages import pages_for
from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.convert.local import convert_folder
from ftengine.device.torch_device import page_aligned
from ftengine.kernels.native import NativeKernels
from ftengine.protocol import GenerateRequest, Sampling
from ftengine.runtime.engine import Engine
from ftengine.scheduler.reuse import Copy
from tests.fakes.tiny_hybrids import build_hybrid
from tests.fakes.tiny_models import TinySizes, build_tiny

CONVERSATIONS = 16
ON_DEVICE = 4
SAID = 16
"""Tokens of each further turn."""
REPLY = 4
FULL = TinySizes(hidden=128, layers=12, head_dim=128, heads=8, kv_heads=8, context=32_768)
HYBRID = {
    "max_position_embeddings": 32_768,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "num_attention_heads": 8,
    "head_dim": 128,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
NO_ENDS = ((0, -100.0), (1, -100.0), (2, -100.0))


@dataclass
class Watch:
    """Copies that an engine does, and how long choosing and copying took. Units: seconds.

    moved: how many of each kind.
    """

    engine: Engine
    moved: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        runner, scheduler = self.engine.runner, self.engine.scheduler
        copy, choose = runner.copy, scheduler.next_batch

        def copy_and_count(items: Sequence[Copy]) -> None:
            items = list(items)
            started = time.perf_counter()
            copy(items)
            self.seconds += time.perf_counter() - started
            self.moved.update(item.kind for item in items)

        def choose_and_time(now_s: float) -> object:
            self.moved, self.seconds = Counter(), 0.0
            started = time.perf_counter()
            batch = choose(now_s)
            self.seconds += time.perf_counter() - started
            return batch

        runner.copy = copy_and_count  # type: ignore[method-assign, assignment]
        scheduler.next_batch = choose_and_time  # type: ignore[method-assign, assignment]


@dataclass
class Kind:
    """What was measured of one kind of model. Units: seconds, bytes."""

    cost_s: list[float] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)
    copy_s: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    recompute_s: list[float] = field(default_factory=list)
    other_tokens: int = 0


class Copies:
    """As many bytes as a step copies, from one flat buffer to another.

    Other places each time, so that no cache has them.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        self._page_bytes = engine.runner.pool.bytes_per_page
        states = engine.runner.states
        self._state_bytes = 0 if states is None else states.bytes_per_slot
        self._threads = threads
        kernels = engine.runner.kernels
        assert isinstance(kernels, NativeKernels), "build the native library first"
        self._copy_rows = kernels.copy_rows
        size = max(engine.runner.pool.total_bytes, 4 * self._state_bytes)
        self._flat = page_aligned(size).fill_(1), page_aligned(size).fill_(1)
        self._at = 0

    def bytes_of(self, moved: Counter[str]) -> int:
        """Of pages and states, both ways."""
        sizes = {"page": self._page_bytes, "state": self._state_bytes}
        return sum(count * sizes[kind.rpartition("_")[2]] for kind, count in moved.items())

    def own_s(self, num_bytes: int) -> float:
        """Seconds for so many bytes by what an engine copies with."""
        source, target = (part.view(1, 1, -1) for part in self._places(num_bytes))
        started = time.perf_counter()
        self._copy_rows(source, (0,), target, (0,))
        return time.perf_counter() - started

    def torch_s(self, num_bytes: int) -> float:
        """Seconds for so many bytes by torch, with one thread or with all."""
        found = []
        for threads in (self._threads, 1):
            source, target = self._places(num_bytes)
            torch.set_num_threads(threads)
            started = time.perf_counter()
            target.copy_(source)
            found.append(time.perf_counter() - started)
        return min(found)

    def _places(self, num_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        source, target = self._flat
        assert num_bytes <= target.numel()
        self._at = 0 if self._at + num_bytes > target.numel() else self._at
        place = slice(self._at, self._at + num_bytes)
        self._at += num_bytes
        return source[place], target[place]


def engine_of(ftw: Path, tokens: int, threads: int, park: bool) -> Engine:
    """An engine with a device for four, and host memory for all; or one that keeps nothing."""
    compute = ComputeConfig(threads=threads)
    if not park:
        engine = Engine(EngineConfig(ftw, tokens, prefix_cache=False, compute=compute))
        engine.load()
        return engine
    probe = Engine(EngineConfig(ftw, 64, compute=compute))
    probe.load()
    cache = probe.info.cache
    assert cache is not None
    pages = pages_for(tokens) * probe.runner.pool.bytes_per_page
    state = cache.checkpoint_bytes
    probe.close()
    memory = MemoryConfig(
        kv_bytes=ON_DEVICE * pages,
        checkpoint_bytes=3 * ON_DEVICE * state,
        park_bytes=(2 if state else 1) * (CONVERSATIONS + 1) * max(pages, 8 * state),
    )
    engine = Engine(EngineConfig(ftw, tokens, compute=compute, memory=memory))
    engine.load()
    return engine


def measure(ftw: Path, tokens: int, rounds: int, threads: int) -> Kind:
    """One kind of model; see the top of this file."""
    context = tokens + (rounds + 1) * (SAID + REPLY)
    engine = engine_of(ftw, context, threads, park=True)
    truth = engine_of(ftw, context, threads, park=False)
    watch, found = Watch(engine), Kind()
    copies = Copies(engine, threads)
    draw = torch.Generator().manual_seed(1)
    texts = [_words(tokens, draw) for _ in range(CONVERSATIONS)]
    for turn in range(rounds + 1):
        for number, text in enumerate(texts):
            request = GenerateRequest(
                f"{turn}-{number}", tuple(text), Sampling(logit_bias=NO_ENDS), REPLY
            )
            reply = turn_of(engine, request, watch, found, copies)
            started = time.perf_counter()
            other = truth.generate_sync([request])[0]
            if turn:
                found.recompute_s.append(time.perf_counter() - started)
            found.other_tokens += other.token_ids != reply
            text += [*reply, *_words(SAID, draw)]
    engine.close()
    truth.close()
    return found


def turn_of(
    engine: Engine, request: GenerateRequest, watch: Watch, found: Kind, copies: Copies
) -> tuple[int, ...]:
    """One turn of one conversation. Its first step brings it back."""
    events: list[object] = []
    engine.submit(request, events.append)
    engine._receive(wait=False)
    engine.step()
    if watch.moved["return_page"]:
        moved = copies.bytes_of(watch.moved)
        found.cost_s.append(watch.seconds)
        found.moved.append(moved)
        found.own_s.append(copies.own_s(moved))
        found.copy_s.append(copies.torch_s(moved))
    while engine.scheduler.has_work:
        engine.step()
    engine._loaded.memory.parked.park_ahead(lambda: True)  # as an engine does that waits
    return tuple(token for event in events for token in getattr(event, "token_ids", ()))


def _words(count: int, draw: torch.Generator) -> list[int]:
    return [int(x) for x in torch.randint(3, 300, (count,), generator=draw)]


def ratios_of(kind: str, found: Kind) -> dict[str, float]:
    """What the text at the top names."""
    over = [mine / copy for mine, copy in zip(found.cost_s, found.copy_s, strict=True)]
    own = [mine / copy for mine, copy in zip(found.cost_s, found.own_s, strict=True)]
    recomputed = statistics.median(found.recompute_s)
    return {
        f"return_over_copy_{kind}": statistics.median(over),
        f"worst_return_over_copy_{kind}": max(over),
        f"return_over_own_copy_{kind}": statistics.median(own),
        f"return_over_recompute_{kind}": statistics.median(found.cost_s) / recomputed,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000, help="of each conversation at first")
    parser.add_argument("--rounds", type=int, default=2, help="further turns of each")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    ratios: dict[str, float] = {}
    measured: dict[str, object] = {"tokens": given.tokens, "conversations": CONVERSATIONS}
    with tempfile.TemporaryDirectory() as name:
        models = {
            "full": build_tiny("llama", Path(name) / "full", sizes=FULL),
            "hybrid": build_hybrid("qwen3_5", Path(name) / "hybrid", changes=HYBRID),
        }
        for kind, source in models.items():
            ftw = Path(name) / f"{kind}-ftw"
            convert_folder(source, ftw)
            found = measure(ftw, given.tokens, given.rounds, given.threads)
            ratios |= ratios_of(kind, found)
            measured[kind] = {
                "returns": len(found.cost_s),
                "returned_bytes": int(statistics.median(found.moved)),
                "cost_s": round(statistics.median(found.cost_s), 5),
                "own_copy_s": round(statistics.median(found.own_s), 5),
                "copy_s": round(statistics.median(found.copy_s), 5),
                "copy_bytes_per_s": round(sum(found.moved) / sum(found.copy_s)),
                "recompute_s": round(statistics.median(found.recompute_s), 4),
                "turns_with_other_tokens": found.other_tokens,
            }
            print(f"{kind}: {measured[kind]}", flush=True)
    report("park", {key: round(value, 4) for key, value in ratios.items()}, measured)


if __name__ == "__main__":
    main()

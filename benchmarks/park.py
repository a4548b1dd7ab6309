"""What it costs to bring a parked conversation back, beside a plain copy of as many bytes.

`python -m benchmarks.park [--tokens 1500] [--rounds 3]`. Sixteen conversations of random models
(full attention; three Gated DeltaNet layers to one of attention) on a device with room for four. In
every round each says a little more: it comes back, and others give way to it. Cost = the time in
which the step's work is chosen and its copies are done, in the step that brings it back. After each
as many pages and states are copied, both ways, by the same threads, between a pool and rows of the
same shape, all in one piece and nothing looked up: return_over_copy = cost / that time, the median
over all returns (worst_ too). return_over_plain = cost / time of as many bytes from one flat buffer
to another. return_over_recompute = cost / time of the same turn without reuse. Replies are compared
with those of an engine that reuses nothing.
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
FULL = TinySizes(hidden=128, layers=8, head_dim=128, heads=8, kv_heads=8, context=32_768)
HYBRID = {
    "max_position_embeddings": 32_768,
    "num_hidden_layers": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
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
    copy_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    recompute_s: list[float] = field(default_factory=list)
    other_tokens: int = 0


class Copies:
    """What is copied in a step, copied again: as it is shaped, and as flat bytes.

    Other places each time, so that no cache has them.
    """

    def __init__(self, engine: Engine) -> None:
        self._pool = engine.runner.pool.like(engine.runner.pool.num_pages)
        self._rows = _filled(self._pool.total_bytes).view(self._pool.num_pages, -1)
        self._state_bytes = 0
        if engine.runner.states is not None:
            self._state_bytes = engine.runner.states.bytes_per_slot
        self._flat = _filled(self._pool.total_bytes), _filled(self._pool.total_bytes)
        for tensor in self._pool.tensors:
            tensor.view(torch.uint8).fill_(1)
        self._page, self._byte = 0, 0

    def bytes_of(self, moved: Counter[str]) -> int:
        """Of pages and states, both ways."""
        sizes = {"page": self._pool.bytes_per_page, "state": self._state_bytes}
        return sum(count * sizes[kind.rpartition("_")[2]] for kind, count in moved.items())

    def shaped_s(self, moved: Counter[str]) -> float:
        """Seconds for pages between a pool and rows, and states between flat buffers."""
        states = {kind: count for kind, count in moved.items() if kind.endswith("state")}
        seconds = self.plain_s(self.bytes_of(Counter(states))) if states else 0.0
        for kind in ("park_page", "return_page"):
            count = min(moved[kind], self._pool.num_pages)
            self._page = 0 if self._page + count > self._pool.num_pages else self._page
            place = slice(self._page, self._page + count)
            self._page += count
            started = time.perf_counter()
            for tensor, rows in self._pool.parts(self._rows):
                source, target = (rows, tensor) if kind == "return_page" else (tensor, rows)
                target[:, place].copy_(source[:, place])
            seconds += time.perf_counter() - started
        return seconds

    def plain_s(self, num_bytes: int) -> float:
        """Seconds for so many bytes between flat buffers."""
        source, target = self._flat
        num_bytes = min(num_bytes, target.numel())
        self._byte = 0 if self._byte + num_bytes > target.numel() else self._byte
        place = slice(self._byte, self._byte + num_bytes)
        self._byte += num_bytes
        started = time.perf_counter()
        target[place].copy_(source[place])
        return time.perf_counter() - started


def _filled(num_bytes: int) -> torch.Tensor:
    return page_aligned(num_bytes).fill_(1)


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
    copies = Copies(engine)
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
        found.copy_s.append(copies.shaped_s(watch.moved))
        found.plain_s.append(copies.plain_s(moved))
    while engine.scheduler.has_work:
        engine.step()
    engine._loaded.memory.parked.make_ready()  # as an engine does that waits
    return tuple(token for event in events for token in getattr(event, "token_ids", ()))


def _words(count: int, draw: torch.Generator) -> list[int]:
    return [int(x) for x in torch.randint(3, 300, (count,), generator=draw)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1500, help="of each conversation at first")
    parser.add_argument("--rounds", type=int, default=3, help="further turns of each")
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
            over = [mine / copy for mine, copy in zip(found.cost_s, found.copy_s, strict=True)]
            plain = [mine / copy for mine, copy in zip(found.cost_s, found.plain_s, strict=True)]
            ratios[f"return_over_copy_{kind}"] = statistics.median(over)
            ratios[f"worst_return_over_copy_{kind}"] = max(over)
            ratios[f"return_over_plain_{kind}"] = statistics.median(plain)
            ratios[f"return_over_recompute_{kind}"] = statistics.median(
                found.cost_s
            ) / statistics.median(found.recompute_s)
            measured[kind] = {
                "returns": len(over),
                "returned_bytes": int(statistics.median(found.moved)),
                "cost_s": round(statistics.median(found.cost_s), 5),
                "copy_s": round(statistics.median(found.copy_s), 5),
                "plain_s": round(statistics.median(found.plain_s), 5),
                "copy_bytes_per_s": round(sum(found.moved) / sum(found.copy_s)),
                "plain_bytes_per_s": round(sum(found.moved) / sum(found.plain_s)),
                "recompute_s": round(statistics.median(found.recompute_s), 4),
                "turns_with_other_tokens": found.other_tokens,
            }
            print(f"{kind}: {measured[kind]}", flush=True)
    report("park", {key: round(value, 4) for key, value in ratios.items()}, measured)


if __name__ == "__main__":
    main()

"""What of agents' edited conversations is computed again, and what a turn costs beside no reuse.

`python -m benchmarks.cache_reuse MODEL.gguf [--scale 1] [--count-scale 1] [--peer]`. Counts come
from tiny random models (full attention; three Gated DeltaNet layers to one of attention) at default
settings: new = tokens of a prompt that no text seen before begins with, recomputed_over_new =
computed / new, the worst of W1 to W4. Times come from MODEL.gguf on W4: every turn with the prefix
cache on and off, in turn; worst_ttft_over_no_reuse is the worst turn's ratio, the first turn
included. last_over_first = tokens per second of the last turn's reply over the first's. --peer: the
same turns by llama.cpp with its own prompt cache, one run; last_over_first_decode_llamacpp is what
the same texts do to it.

At scale 1 all of it takes more than ten minutes. --part does one part, --turns so many further
turns; with --notes FILE what was found before counts too:
`--part counts --notes N`, `--part timed --turns 7 --notes N`, `--part timed --notes N`,
`--part peer --notes N`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cache_reuse_times import TimedTurn, ask_peer, run_turns, timed
from benchmarks.common import report
from benchmarks.workloads import workload
from ftengine.config import EngineConfig, MemoryConfig
from ftengine.convert.local import convert_folder
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_hybrids import build_hybrid
from tests.fakes.tiny_models import TinySizes, build_tiny

KINDS = ("W1", "W2", "W3", "W4")
TINY_CONTEXT = 32_768
"""The tiny models' context: no text may be cut."""
TINY_VOCAB = (3, 300)
STATES = 16
"""Checkpoints of the hybrid: what the default budget gives Qwen3.6-35B-A3B, with 66 MB a state."""
ALL_TURNS = 1000


@dataclass
class Notes:
    """What was found so far. counts: by kind of cache and of work, (computed, new) tokens."""

    counts: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    turns: list[TimedTurn] = field(default_factory=list)

    @staticmethod
    def read(path: Path | None) -> Notes:
        """Those of before; none where there is no file yet."""
        if path is None or not path.exists():
            return Notes()
        plain = json.loads(path.read_text("utf-8"))
        return Notes(plain["counts"], [TimedTurn.of(item) for item in plain["turns"]])

    def write(self, path: Path | None) -> None:
        """For a later run."""
        if path is not None:
            plain = {"counts": self.counts, "turns": [item.plain() for item in self.turns]}
            path.write_text(json.dumps(plain), "utf-8")


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
            engine.close()
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


def ratios_of(notes: Notes) -> dict[str, float]:
    """Of all that was found."""
    found = {
        f"recomputed_over_new_{cache}": max(done / new for done, new in kinds.values())
        for cache, kinds in notes.counts.items()
    }
    turns = notes.turns
    if turns:
        over = [turn.ours.first_s / turn.without_s for turn in turns]
        found["worst_ttft_over_no_reuse"] = max(over)
        found["median_ttft_over_no_reuse"] = statistics.median(over)
        found["last_over_first_decode"] = turns[-1].rate / turns[0].rate
    if turns and all(turn.theirs_s for turn in turns):
        found["worst_ttft_over_llamacpp"] = max(turn.ours.first_s / turn.theirs_s for turn in turns)
        theirs = [len(turn.ours.tokens) / turn.theirs_decode_s for turn in turns]
        found["last_over_first_decode_llamacpp"] = theirs[-1] / theirs[0]
    return {key: round(value, 4) for key, value in found.items()}


def measured_of(notes: Notes) -> dict[str, object]:
    """Of all that was found. Units: as the names say."""
    turns = notes.turns
    return {
        "computed_and_new": notes.counts,
        "prompt_tokens": [len(turn.prompt) for turn in turns],
        "computed_tokens": [turn.ours.computed for turn in turns],
        "first_token_s": [round(turn.ours.first_s, 4) for turn in turns],
        "without_reuse_s": [round(turn.without_s, 4) for turn in turns],
        "llamacpp_s": [round(turn.theirs_s, 4) for turn in turns if turn.theirs_s],
        "tokens_per_s": [round(turn.rate, 1) for turn in turns],
        "turns_with_other_tokens": sum(not turn.same for turn in turns),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--scale", type=float, default=0.25, help="sizes of the timed W4")
    parser.add_argument("--count-scale", type=float, default=0.25, help="sizes where tokens count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", action="store_true", help="also llama.cpp (FT_PEER_PYTHON)")
    parser.add_argument("--part", choices=("counts", "timed", "peer"), help="only this")
    parser.add_argument("--turns", type=int, default=ALL_TURNS, help="at most so many more")
    parser.add_argument("--notes", type=Path, help="file of what was found and is still to count")
    given = parser.parse_args()
    notes = Notes.read(given.notes)
    parts = (given.part,) if given.part else ("counts", "timed", *(["peer"] if given.peer else []))
    with tempfile.TemporaryDirectory() as name:
        if "counts" in parts:
            notes.counts = counts(Path(name), given.count_scale)
        if "timed" in parts:
            ftw = Path(name) / "real"
            convert_folder(given.gguf, ftw)
            before = tuple(notes.turns)
            for turn in timed(ftw, given.scale, given.threads, before, given.turns):
                notes.turns.append(turn)
                notes.write(given.notes)
    if "peer" in parts:
        ask_peer(given.gguf, notes.turns, given.threads)
    notes.write(given.notes)
    report("cache_reuse", ratios_of(notes), measured_of(notes))


if __name__ == "__main__":
    main()

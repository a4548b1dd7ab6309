"""Tokens per second of several streams together, ours against llama.cpp's batches, ids being given.

Every step gives each stream its next id, in both engines as one batch with the logits of all;
sampling and servers are left out. A prompt of 64 tokens stands before each stream.
"""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.side_by_side import Asked, Pair, best_ratio, open_pair, parse

STREAMS = (4, 16)
PROMPT_TOKENS = 64
TOKENS = 32
CONTEXT = 256


def measure(pair: Pair, streams: int) -> tuple[dict[str, list[float]], Counter[str]]:
    """Seconds per engine for TOKENS steps of all streams, and where the CPUs stood."""
    workers = {"ours": pair.ours, **pair.peers}
    prompts = [pair.prompt(PROMPT_TOKENS) for _ in range(streams)]
    for worker in workers.values():
        worker.ask(open=prompts, room=TOKENS)
    samples: dict[str, list[float]] = {name: [] for name in workers}
    placements: Counter[str] = Counter()
    for turn in range(pair.asked.rounds + 1):
        ids = [pair.prompt(TOKENS) for _ in range(streams)]
        placement, _ = pair.probe()
        seconds = {name: worker.ask(together=ids)["seconds"] for name, worker in workers.items()}
        if turn:  # the first one warms up
            placements[placement] += 1
            for name, took in seconds.items():
                samples[name].append(took)
    return samples, placements


def compare(asked: Asked, gguf: Path, ratios: dict[str, float]) -> dict[str, Any]:
    """Add this model's ratios; what was measured."""
    told: dict[str, Any] = {}
    with open_pair(asked, gguf, CONTEXT, max(STREAMS)) as pair:
        for streams in STREAMS:
            samples, placements = measure(pair, streams)
            ratios[f"streams_{gguf.stem}_{streams}"] = round(best_ratio(samples), 3)
            made = streams * TOKENS
            rates = {n: round(made / statistics.median(s), 1) for n, s in samples.items()}
            told[str(streams)] = {"tokens_per_s": rates, "placements": dict(placements)}
        return {**told, **pair.context()}


def main() -> None:
    """Measure every model and print one JSON line."""
    asked = parse(__doc__ or "")
    ratios: dict[str, float] = {}
    told = {gguf.stem: compare(asked, gguf, ratios) for gguf in asked.models}
    report("streams", ratios, {"prompt": PROMPT_TOKENS, "tokens": TOKENS, **told})


if __name__ == "__main__":
    main()

"""Seconds to the first token of a prompt, ours against llama.cpp, interleaved."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.side_by_side import Asked, best_ratio, open_pair, parse

SIZES = (64, 512, 2048)


def compare(asked: Asked, gguf: Path, ratios: dict[str, float]) -> dict[str, Any]:
    """Add this model's ratios for each prompt length; what was measured."""
    rates: dict[str, dict[str, float]] = {}
    with open_pair(asked, gguf) as pair:
        for size in SIZES:
            samples: dict[str, list[float]] = {"ours": [], **{name: [] for name in pair.peers}}
            for _ in range(asked.rounds):
                pair.probe()
                prompt = pair.prompt(size)  # a new one: ours keeps the keys of those it has seen
                samples["ours"].append(pair.ours.ask(prefill=prompt)["seconds"])
                for name, peer in pair.peers.items():
                    samples[name].append(peer.ask(prefill=prompt)["seconds"])
            ratios[f"prefill_{gguf.stem}_{size}"] = round(best_ratio(samples), 3)
            rates[str(size)] = {n: round(size / statistics.median(s)) for n, s in samples.items()}
        return {"tokens_per_s": rates, **pair.context()}


def main() -> None:
    """Measure every model and print one JSON line."""
    asked = parse(__doc__ or "")
    ratios: dict[str, float] = {}
    told = {gguf.stem: compare(asked, gguf, ratios) for gguf in asked.models}
    report("prefill", ratios, told)


if __name__ == "__main__":
    main()

"""How many tokens per second after a prompt, ours against llama.cpp, the ids being given.

Samples are kept apart by where the two CPUs stand at the time; a placement that was not seen is
left out of `ratios` and named.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.side_by_side import CONTEXT, Asked, Pair, best_ratio, open_pair, parse

USUAL_PROMPT = 128
TOKENS = 64
PLACEMENTS = ("near", "far")


def measure(pair: Pair, prompt_tokens: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per engine, and the probe in GB/s, by placement."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(pair.asked.rounds + 1):
        prompt, ids = pair.prompt(prompt_tokens), pair.prompt(TOKENS)
        placement, rate = pair.probe()
        samples = found[placement if turn else "first"]
        samples["probe"].append(rate)
        samples["ours"].append(pair.ours.ask(forced=ids, prompt=prompt)["seconds"])
        for name, peer in pair.peers.items():
            samples[name].append(peer.ask(forced=ids, prompt=prompt)["seconds"])
    found.pop("first")
    return found


def compare(asked: Asked, gguf: Path, ratios: dict[str, float]) -> dict[str, Any]:
    """Add this model's ratios; what was measured."""
    told: dict[str, Any] = {}
    prompt = asked.prompt
    model = gguf.stem if prompt == USUAL_PROMPT else f"{gguf.stem}_after_{prompt}"
    with open_pair(asked, gguf, max(CONTEXT, prompt + 2 * TOKENS)) as pair:
        for placement, samples in measure(pair, prompt).items():
            probes = samples.pop("probe")
            key = f"decode_{model}_{placement}"
            ratios[key] = round(best_ratio(samples), 3)
            rates = {name: TOKENS / statistics.median(took) for name, took in samples.items()}
            share = pair.token_bytes * rates["ours"] / statistics.median(probes) / 1e9
            told[placement] = {
                "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
                "samples": len(probes),
                "probe_gb_per_s": round(statistics.median(probes), 1),
                "share_of_probe": round(share, 3),
            }
        told["not_seen"] = [name for name in PLACEMENTS if name not in told]
        return {**told, **pair.context()}


def main() -> None:
    """Measure every model and print one JSON line."""
    asked = parse(__doc__ or "", USUAL_PROMPT)
    ratios: dict[str, float] = {}
    told = {gguf.stem: compare(asked, gguf, ratios) for gguf in asked.models}
    report("decode", ratios, {"prompt": asked.prompt, "tokens": TOKENS, **told})


if __name__ == "__main__":
    main()

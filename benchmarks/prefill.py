"""Seconds to the first token of a prompt, ours against llama.cpp, interleaved."""

from __future__ import annotations

import statistics

from benchmarks.common import interleave, median_ratio, report
from benchmarks.side_by_side import open_pair

SIZES = (64, 512, 2048)


def main() -> None:
    """Measure each prompt length and print one JSON line."""
    ratios: dict[str, float] = {}
    rates: dict[str, dict[str, float]] = {}
    with open_pair(__doc__ or "") as pair:
        for size in SIZES:
            prompt = pair.prompt(size)
            pair.probe()
            samples = interleave(
                pair.rounds,
                ours=lambda ids=prompt: pair.ours.ask(prefill=ids)["seconds"],
                peer=lambda ids=prompt: pair.peer.ask(prefill=ids)["seconds"],
            )
            key = f"ours_over_llama_cpp_{size}"
            ratios[key] = round(median_ratio(samples["ours"], samples["peer"]), 3)
            rates[str(size)] = {n: round(size / statistics.median(s)) for n, s in samples.items()}
        report("prefill", ratios, {"tokens_per_s": rates, **pair.context()})


if __name__ == "__main__":
    main()

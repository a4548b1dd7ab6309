"""How many tokens per second after a prompt of 128, ours against llama.cpp, given ids, interleaved."""

from __future__ import annotations

import statistics

from benchmarks.common import interleave, median_ratio, report
from benchmarks.side_by_side import open_pair

PROMPT_TOKENS = 128
TOKENS = 64


def main() -> None:
    """Measure and print one JSON line."""
    with open_pair(__doc__ or "") as pair:
        prompt = pair.prompt(PROMPT_TOKENS)

        def ours() -> float:
            pair.probe()
            return float(pair.ours.ask(forced=pair.prompt(TOKENS), prompt=prompt)["seconds"])

        def peer() -> float:
            return float(pair.peer.ask(forced=pair.prompt(TOKENS), prompt=prompt)["seconds"])

        interleave(1, ours=ours, peer=peer)
        pair.probes.clear()
        samples = interleave(pair.rounds, ours=ours, peer=peer)
        rates = {name: round(TOKENS / statistics.median(s), 1) for name, s in samples.items()}
        report(
            "decode",
            {"ours_over_llama_cpp": round(median_ratio(samples["ours"], samples["peer"]), 3)},
            {"tokens_per_s": rates, "prompt": PROMPT_TOKENS, "tokens": TOKENS, **pair.context()},
        )


if __name__ == "__main__":
    main()

"""Which experts cross the link, and what that costs: miss rates, divisions of misses, prefill.

Every time here is virtual (ftengine/device/clock.py); nothing is measured and no GPU is needed.
Writes benchmarks/results/expert_traffic.png where matplotlib is installed (the dev extra). Traces
are synthetic, with the locality that the paper published, or recorded (benchmarks/data).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.common import ROOT, report
from benchmarks.line_chart import MISSING, Line, Panel, can_draw, write_png
from ftengine.device.clock import CLOCK_NAME
from ftengine.experts.traces import Trace, read_trace
from ftengine.forecast.locality import (
    deepseek_like,
    layer_split_misses,
    lru_misses,
    qwen_like,
    static_misses,
)
from ftengine.forecast.strategies import (
    CASES,
    Case,
    Contest,
    run_contest,
    run_decode_after_prefill,
    run_long_prefill,
    run_short_turn,
)

SHARES = (0.05, 0.08, 0.11, 0.16, 0.22, 0.30, 0.37, 0.50, 0.65, 0.80)
PLACEMENTS = (
    ("LRU", lru_misses),
    ("static by prefill", static_misses),
    ("layer split", layer_split_misses),
)
PUBLISHED = {("qwen-like", 0.37): (16, 41, 62), ("deepseek-like", 0.11): (39, 59, 89)}
"""Per cent: arXiv 2608.16157, Figure 4b: this placement, refreshed at prefill, static."""
PROMPT_TOKENS = 8192
TURN_TOKENS = 20
WINDOW = 100
MACHINES = tuple({case.device: case for case in reversed(CASES)}.values())
"""One case for each machine."""
RECORDED = ROOT / "benchmarks" / "data"
RECORDED_SHARE = 0.5
RECORDED_ROW_BYTES = 2 << 20
"""Traces carry no sizes; this is about an expert of 576 x 1536 at 4 to 5 bits, or of 2048 x 512."""


def main() -> None:
    """Print the tables, draw the chart, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a recorded trace")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    traces = {
        "qwen-like": qwen_like(8, options.steps, options.seed),
        "deepseek-like": deepseek_like(8, options.steps, options.seed),
    }
    recorded = {}
    for path in [*sorted(RECORDED.glob("*.trace.jsonl")), *options.trace]:
        with path.open(encoding="utf-8") as lines:
            recorded[path.name.partition(".")[0]] = read_trace(lines, str(path))
    misses = {name: miss_table(name, trace) for name, trace in (traces | recorded).items()}
    draw(misses)
    contests = contest_table(options.steps, options.seed)
    real = [
        recorded_row(name, case, trace) for name, trace in recorded.items() for case in MACHINES
    ]
    prefill = prefill_table(options.seed)
    ratios = {
        "auto_over_best": max(item.auto_over_best for item in contests),
        "auto_over_better_pure": max(item.auto_over_better_pure for item in contests),
        "auto_over_best_recorded": max(item.auto_over_best for item in real),
        "auto_over_better_pure_recorded": max(item.auto_over_better_pure for item in real),
        "prefill_over_link": prefill,
        **{f"miss_lru_{n}_{s:.0%}": misses[n]["LRU"][s] for n, s in PUBLISHED},
        **{f"miss_static_{n}_{s:.0%}": misses[n]["static by prefill"][s] for n, s in PUBLISHED},
        **{
            f"miss_{word}_{n}_50%": misses[n][label][0.50]
            for n in recorded
            for word, label in (("lru", "LRU"), ("static", "static by prefill"))
        },
    }
    measured = {"clock": CLOCK_NAME, "steps": options.steps, "seed": options.seed}
    report("expert_traffic", {k: round(v, 4) for k, v in ratios.items()}, measured)


def miss_table(name: str, trace: Trace) -> dict[str, dict[float, float]]:
    """Miss rate of each placement at each share of the pool."""
    table = {label: {share: count(trace, share) for share in SHARES} for label, count in PLACEMENTS}
    print(f"\nmiss rate, {name} ({trace.source}; first 100 steps left out)")
    print("  share of pool " + "".join(f"{share:7.0%}" for share in SHARES))
    for label, rates in table.items():
        print(f"  {label:<17}" + "".join(f"{rates[share]:7.1%}" for share in SHARES))
    for (target, share), percents in PUBLISHED.items():
        if target == name:
            print(f"  paper at {share:.0%}: " + ", ".join(f"{p} %" for p in percents))
    return table


def contest_table(steps: int, seed: int) -> list[Contest]:
    """Every division of misses on every machine, over the best constant share."""
    print(f"\ntotal MoE time over the best constant share, {steps} steps, {CLOCK_NAME} time")
    print("  auto: the worst of exact rates and +-20 % errors the planner is not told\n")
    header = ("best share", "fetch", "cpu", "auto", "forced 1", "q=0 rnd", "late miss", "/pure")
    print(f"  {'':<48}" + "".join(f"{word:>11}" for word in header))
    contests = []
    for case in CASES:
        contests.append(run_contest(case, steps, seed))
        contest_row(case.name, contests[-1], steps)
    return contests


def recorded_row(name: str, case: Case, trace: Trace) -> Contest:
    """The same contest on a recorded trace, with half of its experts in slots."""
    shape = replace(case.shape, name=name, expert_row_bytes=RECORDED_ROW_BYTES)
    case = replace(case, shape=shape, share=RECORDED_SHARE)
    contest = run_contest(case, len(trace.steps), 0, sweep=10, trace=trace)
    contest_row(case.name, contest, len(trace.steps))
    return contest


def contest_row(name: str, contest: Contest, steps: int) -> None:
    """Print one line of the contest table."""
    best = contest.shares[contest.best_share].seconds
    late = contest.autos[(1.0, 1.0)].late_miss_rate(steps - 100)
    cells = [
        f"{contest.best_share:.2f}",
        *(f"{totals.seconds / best:.3f}" for totals in (contest.fetch, contest.cpu)),
        f"{contest.auto_over_best:.3f}",
        *(f"{totals.seconds / best:.3f}" for totals in (contest.forced, contest.rounded)),
        f"{late:.1%}",
        f"{contest.auto_over_better_pure:.3f}",
    ]
    print(f"  {name:<48}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


def prefill_table(seed: int) -> float:
    """Long prompts against the link, short turns, decoding afterwards. Returns the worst ratio.

    The ratio counts only where computing is shorter than the link.
    """
    print(f"\nprefill of {PROMPT_TOKENS} tokens on a cold cache, {CLOCK_NAME} seconds")
    header = ("pool/B_P", "compute", "2 buffers", "/floor", "1 buffer", "loss")
    print(f"  {'':<48}" + "".join(f"{word:>10}" for word in header))
    worst = 0.0
    for case in CASES:
        times = run_long_prefill(case.machine, case.shape, PROMPT_TOKENS)
        floor = max(times.link_s, times.compute_s)
        if times.compute_s < times.link_s:
            worst = max(worst, times.two_buffers_s / times.link_s)
        loss = 1 - times.two_buffers_s / times.one_buffer_s
        print(
            f"  {case.name:<48}{times.link_s:10.3f}{times.compute_s:10.3f}"
            f"{times.two_buffers_s:10.3f}{times.two_buffers_s / floor:10.3f}"
            f"{times.one_buffer_s:10.3f}{loss:10.0%}"
        )
    print(f"\na turn of {TURN_TOKENS} tokens on a warm cache, and decode hit rates after a prefill")
    header = ("way", "asked", "missing", "pool moved", "hit before", "20 after", "100 after")
    print(f"  {'':<48}" + "".join(f"{word:>11}" for word in header))
    for case in CASES:
        turn = run_short_turn(case, TURN_TOKENS, seed)
        buffers = 2 * case.shape.num_experts
        soon = run_decode_after_prefill(case, buffers, TURN_TOKENS, seed)
        later = run_decode_after_prefill(case, buffers, WINDOW, seed)
        print(
            f"  {case.name:<48}{turn.way:>11}{turn.asked:>11}{turn.missing:>11}"
            f"{turn.link_bytes / turn.pool_bytes:>11.1%}{later.before:>11.1%}"
            f"{soon.after / soon.before:>10.2f}x{later.after / later.before:>10.2f}x"
        )
    return worst


def draw(misses: dict[str, dict[str, dict[float, float]]]) -> None:
    """The chart: a panel per trace, a line per placement, the published points beside them."""
    if not can_draw():
        print(f"\n{MISSING}")
        return
    panels = []
    for name, table in misses.items():
        lines = tuple(
            Line(label, tuple((100 * share, 100 * rate) for share, rate in rates.items()))
            for label, rates in table.items()
        )
        points = [(100 * s, found) for (n, s), found in PUBLISHED.items() if n == name]
        marks = tuple(
            Line(f"paper, {word}", ((share, found[place]),))
            for share, found in points
            for place, word in enumerate(("followed", "set at prefill", "static"))
        )
        panels.append(Panel(name, lines, marks))
    target = ROOT / "benchmarks" / "results" / "expert_traffic.png"
    axes = ("share of the expert pool in slots (%)", "experts not in a slot (%)")
    write_png(target, "Misses while decoding, by placement", axes, panels)
    print(f"\nchart: {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

"""docs/models.md from the registry, the built families and the report of the parity suite.

The report: `FT_PARITY_JSON=benchmarks/results/parity.json pytest tests/ftengine/parity`. The page
is written by `python -m benchmarks.models_page`; `--check` only says whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftengine.models.families import FAMILIES
from ftengine.models.families.base import Family
from ftman.pull.index import read_entry_file

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "results" / "parity.json"
PAGE = ROOT / "docs" / "models.md"
NOT_BUILT = (
    ("kimi_k3", "residuals over blocks of layers, and an activation no kernel has"),
    ("muse_spark", "experts with norms of their own and gated residuals"),
    ("jetmoe", "query heads are experts themselves"),
    ("dbrx", "one flat tensor for all experts"),
)
"""Architectures of known releases that are refused, and why."""

Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]


def read_report(path: Path) -> Rows:
    """Model -> test -> row of the report."""
    found: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in json.loads(path.read_text("utf-8")):
        found[row["model"]][row["test"]] = row
    return found


def registry_names() -> dict[str, list[str]]:
    """Family -> registry names with their tags."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "registry" / "models").glob("*.toml")):
        for entry in read_entry_file(path):
            found[entry.family].append(f"{entry.name}:{entry.tag}")
    return found


def page(report: Rows, names: Mapping[str, Sequence[str]]) -> str:
    """The whole text."""
    built = {family.name for family in FAMILIES}
    proven = {row["logits"]["family"] for row in report.values() if "logits" in row}
    moe = {
        row["logits"]["family"]
        for row in report.values()
        if "logits" in row and row["logits"]["experts"]
    }
    return "\n".join(
        [
            "# Models",
            "",
            "Written by `python -m benchmarks.models_page` from the registry, the families that",
            "are built and the report of the parity suite (benchmarks/results/parity.json). Do",
            "not edit.",
            "",
            f"{len(built)} families are built, {len(proven)} of them compared with another",
            f"implementation in the last report; {len(moe)} have routed experts. Nothing here",
            "was run on real weights: the models compared are small and random, with every",
            "special thing of the family in reach of a short prompt. `checked = never` in the",
            "registry means that nobody has asked the hub yet.",
            "",
            "## Families",
            "",
            "| family | GGUF | names in the registry |",
            "|---|---|---|",
            *(_family_row(family, names) for family in sorted(FAMILIES, key=lambda f: f.name)),
            "",
            "GGUF: architectures of files that are read. A family without one takes safetensors",
            "only.",
            "",
            "## What was compared",
            "",
            "Difference: the largest of any logit over 75 tokens, float32. Greedy: so many tokens",
            "were the same. Runs: in chunks, in a batch of unequal lengths and after preemption",
            "the tokens are those of a run alone. Split: with experts divided between the slots of",
            "an emulated device and the CPU the tokens are those of the CPU.",
            "",
            "| model | family | oracle | difference | allowed | greedy | runs | split |",
            "|---|---|---|---|---|---|---|---|",
            *(_report_row(model, report[model]) for model in sorted(report)),
            "",
            "## Not built",
            "",
            "`ft pull` of one of these says so before the first byte of a weight is fetched.",
            "",
            "| family | why |",
            "|---|---|",
            *(f"| {name} | {why} |" for name, why in NOT_BUILT if name not in built),
            "",
        ]
    )


def _family_row(family: Family, names: Mapping[str, Sequence[str]]) -> str:
    gguf = ", ".join(family.gguf_archs)
    return f"| {family.name} | {gguf} | {', '.join(names.get(family.name, ()))} |"


def _report_row(model: str, tests: Mapping[str, Mapping[str, Any]]) -> str:
    row = tests.get("logits") or tests["runs"]
    compared = ("", "", "", "")
    if "logits" in tests:
        difference, allowed = f"{row['difference']:.0e}", f"{row['tolerance']:.0e}"
        compared = (row["oracle"], difference, allowed, str(row["greedy_tokens"]))
    runs = "same" if "runs" in tests else "long form"
    split = "same" if "split" in tests else ""
    return f"| {model} | {row['family']} | {' | '.join(compared)} | {runs} | {split} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it; 1 where it differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    text = page(read_report(REPORT), registry_names())
    if options.check:
        same = PAGE.exists() and PAGE.read_text("utf-8") == text
        print("up to date" if same else f"{PAGE} is not what would be written now")
        return 0 if same else 1
    PAGE.write_text(text, "utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The table of tests/failures.py names real tests, or says why there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.architecture.source import ROOT, names_of_tests, plain_environment
from tests.failures import TABLE, Row, lines

ROWS = [row for rows in TABLE.values() for row in rows]
SHORTEST_REASON = 30


def named() -> Iterator[tuple[str, str]]:
    """File below tests, and function, of every test that a row names."""
    for row in ROWS:
        for test in row.tests:
            path, _, name = test.partition("::")
            yield path, name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_tests_that_exist_or_a_reason(row: Row) -> None:
    assert row.tests or len(row.reason) >= SHORTEST_REASON
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in names_of_tests(f"tests/{path}"), f"{row.name}: there is no {test}"


def test_rows_are_told_apart_and_printed() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    text = "\n".join(lines())
    assert all(row.name in text and row.says in text for row in ROWS)


@pytest.mark.slow
def test_every_named_test_is_collected() -> None:
    wanted = set(named())
    files = sorted({f"tests/{path}" for path, _ in wanted})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *files]
    done = subprocess.run(
        command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, check=False
    )
    ids = [line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line]
    found = {tuple(item.removeprefix("tests/").split("::")[:2]) for item in ids}
    assert wanted <= found, sorted(wanted - found)

"""The table of tests/failures.py names real tests, or says why there is none."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.failures import TABLE, Row, lines

ROOT = Path(__file__).resolve().parents[2]
ROWS = [row for rows in TABLE.values() for row in rows]
SHORTEST_REASON = 30


def named() -> Iterator[tuple[str, str]]:
    """File below tests, and function, of every test that a row names."""
    for row in ROWS:
        for test in row.tests:
            path, _, name = test.partition("::")
            yield path, name


@cache
def functions_of(path: str) -> frozenset[str]:
    """Functions of a test file; none for a file that is not there or not collected."""
    file = ROOT / "tests" / path
    if not file.name.startswith("test_") or not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_tests_that_exist_or_a_reason(row: Row) -> None:
    assert row.tests or len(row.reason) >= SHORTEST_REASON
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name.startswith("test_"), test
        assert name in functions_of(path), f"{row.name}: there is no {test}"


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
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
    ids = [line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line]
    found = {tuple(item.removeprefix("tests/").split("::")[:2]) for item in ids}
    assert wanted <= found, sorted(wanted - found)

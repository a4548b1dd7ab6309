"""What `make clients` makes of the words and reports of the clients' own test runners."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.pins import ENVIRONMENTS, SUITES
from tests.clients.recorder import Exchange
from tests.clients.run import Result, chosen, is_unexpected, junit_counts, tap_counts

SUITE_FILES = Path(__file__).resolve().parent / "suites"


def answered(status: int, answer: str = "") -> Exchange:
    return Exchange("POST", "/api/chat", {}, None, status, "application/json", answer)


def test_every_suite_has_a_file_and_a_pinned_version() -> None:
    for suite in SUITES:
        assert (SUITE_FILES / suite.file).exists()
        assert suite.version[0].isdigit()
        assert suite.environment == "node" or suite.environment in ENVIRONMENTS
    files = {path.name for path in SUITE_FILES.glob("*_py.py")} | {
        path.name for path in SUITE_FILES.glob("*.mjs") if path.name != "stage.mjs"
    }
    assert files == {suite.file for suite in SUITES}


def test_counts_of_both_runners(tmp_path: Path) -> None:
    assert tap_counts("ok 1 - a\n# pass 6\n# fail 1\n# skipped 2\n") == (6, 1, 2)
    report = tmp_path / "report.xml"
    assert junit_counts(report) == (0, 1, 0)
    suite = '<testsuite tests="9" failures="1" errors="1" skipped="2"/>'
    report.write_text(f"<testsuites>{suite}</testsuites>")
    assert junit_counts(report) == (5, 2, 2)


def test_a_run_is_fine_when_something_passed_and_nothing_failed() -> None:
    assert Result(3, 0, 1, 1.0).fine
    assert not Result(3, 1, 0, 1.0).fine
    assert not Result(0, 0, 4, 1.0).fine
    assert not Result(3, 0, 0, 1.0, words="POST /x was answered 500").fine
    assert Result(3, 1, 2, 1.0).cases == "3/4 (2 skipped)"


def test_our_own_failures_and_unknown_routes_are_unexpected() -> None:
    assert is_unexpected(answered(500))
    assert is_unexpected(answered(405))
    assert is_unexpected(answered(404, "404 page not found"))
    assert not is_unexpected(answered(404, '{"error":"model \'nope\' not found"}'))
    assert not is_unexpected(answered(400))


def test_optional_clients_run_only_when_asked_for() -> None:
    assert "open-webui" not in [suite.client for suite in chosen([], [])]
    assert "open-webui" in [suite.client for suite in chosen([], ["open-webui"])]
    assert [suite.client for suite in chosen(["litellm"], [])] == ["litellm"]
    with pytest.raises(SystemExit, match="no client 'curl'; there are: ai-sdk"):
        chosen(["curl"], [])

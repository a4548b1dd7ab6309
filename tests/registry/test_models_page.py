"""docs/models.md is what the registry, the built families and the parity report say now."""

from __future__ import annotations

import pytest

from benchmarks.models_page import main


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out

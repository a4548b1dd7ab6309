from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ftman.cli.main import main
from tests.ftman.cli.gateway import SHOWN, Gateway, running


@dataclass
class Done:
    code: int
    out: str
    err: str


class Cli:
    """Runs `ft` in this process against the fake gateway."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str, stdin: str = "") -> Done:
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(words)
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)


@pytest.fixture(autouse=True)
def nobody_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may find, and tell something to, a manager of the person who runs the tests."""
    monkeypatch.setenv("FT_HOST", "127.0.0.1:1")


@pytest.fixture
def ft(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    made = Gateway()
    made.on("POST", "/api/show", SHOWN)
    made.on("POST", "/api/generate", {"response": "", "done": True, "done_reason": "load"})
    with running(made):
        monkeypatch.setenv("FT_HOST", made.url)
        yield made

"""Real engine processes on a tiny model, reached over a unix socket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ftengine.parity.tiny_engines import make_tiny
from tests.ftengine.server.engine_process import RunningEngine, Starter


@pytest.fixture(scope="session")
def ftw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny MoE model."""
    return make_tiny("qwen3_moe", tmp_path_factory.mktemp("tiny"))[1]


@pytest.fixture
def start(ftw: Path) -> Iterator[Starter]:
    """Starts engines; what still runs at the end is killed."""
    yield from _starter(ftw)


@pytest.fixture(scope="module")
def shared(ftw: Path) -> Iterator[RunningEngine]:
    """One engine for the tests that change nothing in it."""
    for starter in _starter(ftw):
        yield starter("--context", "256", "--orphan-s", "60")


def _starter(ftw: Path) -> Iterator[Starter]:
    with tempfile.TemporaryDirectory(prefix="ft") as folder:  # short: socket paths are limited
        starter = Starter(ftw, Path(folder))
        yield starter
        for process in starter.started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

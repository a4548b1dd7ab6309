"""One tiny llama for the whole folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftengine.runtime.engine import Engine
from tests.ftengine.parity.tiny_engines import load_engine, make_tiny


@pytest.fixture(scope="session")
def ftw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny dense model."""
    return make_tiny("llama", tmp_path_factory.mktemp("llama"))[1]


@pytest.fixture
def engine(ftw: Path) -> Engine:
    """A fresh engine on it."""
    return load_engine(ftw)

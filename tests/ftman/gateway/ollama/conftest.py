"""One manager for all native suites of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ftman.gateway.ollama.models import NativeManager, native_manager


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeManager]:
    """A manager with scripted models."""
    with native_manager(tmp_path_factory.mktemp("native")) as running:
        yield running

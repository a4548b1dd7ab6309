"""One converted tiny model per family for the whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ftengine.parity.tiny_engines import make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """family -> (checkpoint folder, ftw folder)."""
    made: dict[str, tuple[Path, Path]] = {}

    def get(family: str) -> tuple[Path, Path]:
        if family not in made:
            made[family] = make_tiny(family, tmp_path_factory.mktemp(family))
        return made[family]

    return get

"""One converted tiny model per family for the whole run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="session")
def report() -> Iterator[list[dict[str, Any]]]:
    """What was compared: rows for the file that FT_PARITY_JSON names, written at the end.

    A row replaces the one of the same model and test. benchmarks/models_page.py reads the file.
    """
    rows: list[dict[str, Any]] = []
    yield rows
    target = os.environ.get("FT_PARITY_JSON")
    if not target or not rows:
        return
    path = Path(target)
    found = json.loads(path.read_text("utf-8")) if path.exists() else []
    merged = {(row["model"], row["test"]): row for row in (*found, *rows)}
    path.write_text(json.dumps([merged[key] for key in sorted(merged)], indent=1) + "\n", "utf-8")

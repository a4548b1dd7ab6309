"""Tiny MoE models with enough experts that a cache can be too small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftengine.runtime.engine import Engine
from tests.fakes.tiny_models import sizes_of
from tests.ftengine.parity.tiny_engines import load_engine, make_tiny

LAYERS, EXPERTS, TOP_K = 4, 16, 2
TOTAL = LAYERS * EXPERTS


@pytest.fixture(scope="session")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """family -> FTW folder."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            sizes = sizes_of(family, layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K)
            made[family] = make_tiny(family, tmp_path_factory.mktemp(family), sizes=sizes)[1]
        return made[family]

    return get


@pytest.fixture
def engines(moe: Callable[[str], Path]) -> Iterator[Callable[..., Engine]]:
    """(family, options of load_engine) -> engine; closed at the end."""
    opened: list[Engine] = []

    def get(family: str = "mixtral", **options: Any) -> Engine:
        if options.get("device") == "emulated":
            options.setdefault("device_bytes", 1 << 28)
        opened.append(load_engine(moe(family), parallel=5, **options))
        return opened[-1]

    yield get
    for engine in opened:
        engine.close()

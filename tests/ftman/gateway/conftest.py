"""One manager per module: most tests only ask it things."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import GO_TEMPLATE, Manager, Tiny, ids_of, managing


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager with three models whose engine always answers "Hello <b>"."""
    models = (
        Tiny(
            "tiny:latest", licenses=("MIT",), parameters={"stop": ["<|end|>"], "temperature": 0.6}
        ),
        Tiny("go:latest", template=GO_TEMPLATE, system="Be brief.", seed=1),
        Tiny("tools:latest", capabilities=("completion", "tools", "thinking"), seed=2),
    )
    script = FakeScript(tokens=ids_of("Hello <b>"))
    with managing(tmp_path_factory.mktemp("home"), script, models) as running:
        yield running

"""One interpreting child for all parity tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.ftengine.kernels.triton.interpreter import Interpreter

pytest.importorskip("triton", reason="Triton is for Linux only")


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter()
    yield child
    child.close()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)

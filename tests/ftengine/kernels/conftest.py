"""The loaded native library, once per target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ftengine.kernels.native import NativeKernels

THREADS = 2


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def native(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    """The kernels on one target; a target that this CPU or build lacks is skipped."""
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the native pool owns the cores
    kernels = NativeKernels.load(num_threads=THREADS)
    if request.param not in kernels.info().targets:
        torch.set_num_threads(torch_threads)
        pytest.skip(f"{request.param} is not usable here")
    kernels.set_target(request.param)
    torch.manual_seed(11)
    yield kernels
    kernels.set_threads(THREADS)
    torch.set_num_threads(torch_threads)

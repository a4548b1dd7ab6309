"""Rates of the CPU side: streaming, and the real expert kernel per weight format.

Expert rows are filled with one repeated pattern: the kernels' time does not depend on values, and
filling hundreds of megabytes with random numbers would take longer than the measurement.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from ftengine.device.torch_device import page_aligned
from ftengine.kernels.native import ExpertBank, NativeKernels
from ftengine.quant.panel32 import expert_layout
from ftman.clock import Clock

FORMATS = ("bf16", "q8_0", "q4_1", "mxfp4", "nvfp4", "fp8_block")
HIDDEN = 2048
INTERMEDIATE = 768
EXPERTS_PER_TOKEN = 8
BANK_BYTES = 384 << 20
"""More than any last-level cache of the machines this is for."""
FILL = 0x2C
"""A byte that makes a small finite number as every code and every scale, float32 and E8M0 too."""
ROUNDS = 5


def measure_read(kernels: NativeKernels, clock: Clock) -> float:
    """Streaming read of all threads. Units: bytes per second, median of five passes."""
    data = page_aligned(BANK_BYTES)
    data.fill_(1)
    return _median_rate(clock, BANK_BYTES, lambda: kernels.stream_read(data))


def measure_experts(kernels: NativeKernels, fmt: str, clock: Clock) -> float:
    """One token through every expert of a bank, eight a step, each expert once.

    Units: bytes of expert weights per second, median of five passes.
    """
    layout = expert_layout(fmt, fmt, HIDDEN, INTERMEDIATE)
    count = BANK_BYTES // layout.row_bytes // EXPERTS_PER_TOKEN * EXPERTS_PER_TOKEN
    data = page_aligned(count * layout.row_bytes).view(count, layout.row_bytes)
    data.fill_(FILL)
    bank = ExpertBank(data, layout, fmt, fmt, HIDDEN, INTERMEDIATE)
    x = torch.full((1, HIDDEN), 0.01)
    out = torch.empty_like(x)
    weights = torch.full((1, EXPERTS_PER_TOKEN), 1 / EXPERTS_PER_TOKEN)
    steps = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    ids = steps.to(torch.int32).view(-1, 1, EXPERTS_PER_TOKEN)

    def run() -> None:
        for step in ids:
            kernels.expert_ffn(x, step, weights, bank, out=out)

    return _median_rate(clock, count * layout.row_bytes, run)


def _median_rate(clock: Clock, num_bytes: int, run: Callable[[], object]) -> float:
    run()
    rates = []
    for _ in range(ROUNDS):
        started = clock.monotonic()
        run()
        rates.append(num_bytes / max(clock.monotonic() - started, 1e-9))
    return statistics.median(rates)

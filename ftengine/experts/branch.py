"""The CPU branch: host experts computed on a thread beside the device's work."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ftengine.experts.host import HostBank
from ftengine.experts.partials import PairKernel, Routed
from ftman.clock import Clock


class CpuBranch:
    """One thread that computes misses straight from host memory. One job at a time."""

    def __init__(self, kernel: PairKernel, clock: Clock) -> None:
        self._kernel = kernel
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cpu-experts")
        self._job: Future[float] | None = None

    def start(
        self, host: HostBank, routed: Routed, experts: Sequence[int], parts: torch.Tensor
    ) -> None:
        """Begin to fill the parts of these experts' pairs."""
        assert self._job is None, "the last job of the CPU branch was not waited for"
        if experts:
            self._job = self._pool.submit(self._run, host, routed, tuple(experts), parts)

    def finish(self) -> float:
        """Wait for the job, if there is one. Returns the seconds it computed. Raises its error."""
        job, self._job = self._job, None
        return 0.0 if job is None else job.result()

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()

    def _run(
        self, host: HostBank, routed: Routed, experts: tuple[int, ...], parts: torch.Tensor
    ) -> float:
        started = self._clock.monotonic()
        with torch.inference_mode():
            host.will_read(experts)
            rows = {expert: expert for expert in experts}
            self._kernel.compute(routed, rows, host.bank, parts)
        return self._clock.monotonic() - started

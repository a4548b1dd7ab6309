"""What everything that computes on a GPU works with: device, launcher, the CPU's kernels, sums."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.device.cuda import GpuDevice
from ftengine.gpu.launcher import Launcher
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.triton import row_calls
from ftengine.kernels.triton.calls import KernelCall


@dataclass(frozen=True)
class GpuTools:
    """One GPU. native: the CPU branch's kernels, None where the library is missing.

    dot: how tiles are multiplied, product.py's names: "f32" where nothing may be rounded.
    """

    device: GpuDevice
    launcher: Launcher
    native: NativeKernels | None
    dot: str

    def launch(self, call: KernelCall) -> None:
        """Put a launch on the compute stream. A build's first time must not be in a capture."""
        launcher = self.launcher
        launcher.launch(launcher.load(call.build), call.arguments(), self.device.compute)

    def add(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        """out += rows, on the compute stream. Shape: both float32 [n, width]."""
        self.launch(row_calls.add_rows(rows, out, accumulate=True))

"""Layers that torch computes in part, on the stand-in: torch is not on its stream, so all waits.

On a real device torch's operators are on the compute stream and nothing of this is needed.
"""

from __future__ import annotations

from typing import Any

from ftengine.device.cuda import GpuDevice
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.triton.calls import KernelCall
from ftengine.plan.record import Watch


class SteppedTools(GpuTools):
    """A launch has ended when it returns: what it reads may then be dropped. No captures."""

    def launch(self, call: KernelCall) -> None:
        super().launch(call)
        self.device.compute.synchronize()


class SteppedTorch(Watch):
    """Torch computes once everything enqueued before has ended."""

    def __init__(self, device: GpuDevice) -> None:
        super().__init__(allowed_lists=0)
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._is_harmless(func.__name__, args):
            self._device.synchronize()
        return func(*args, **(kwargs or {}))

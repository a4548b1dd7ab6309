"""A real GPU behind the Device interface: memory, a compute stream and a copy stream of its driver.

Works on CUDA and HIP alike. Kernels and torch must use `compute` as their stream; `copies` is for
those who order copies themselves, event by event. Memory is taken
from the driver in exact sizes, not from torch's pool, so what is released is free for others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ftengine.device import base
from ftengine.device.torch_device import PAGE_BYTES
from ftengine.errors import CapacityError
from ftengine.gpu import api, stream
from ftengine.gpu.api import Api
from ftengine.gpu.driver import Driver
from ftengine.gpu.stream import Stream

log = logging.getLogger(__name__)

Wrap = Callable[[int, int], torch.Tensor]
"""Address and number of bytes -> a uint8 tensor over that memory, which it does not own."""


class GpuEvent:
    """A point of the copy stream. Its driver event is used again once nobody holds this."""

    def __init__(self, event: stream.Event, idle: list[stream.Event]) -> None:
        self.event = event
        self._idle = idle

    def __del__(self) -> None:
        self._idle.append(self.event)


class GpuDevice:
    """Device. Used from the engine thread only; close gives all memory back to the driver."""

    def __init__(self, driver: Driver, wrap: Wrap) -> None:
        self.name = driver.api.backend
        self.total_bytes = driver.info.total_bytes
        self.driver = driver
        self.compute = Stream(driver)
        self.copies = Stream(driver)
        self._computed = stream.Event(driver)
        self._wrap = wrap
        self._held: dict[int, int] = {}
        self._reserved_bytes = 0
        self._idle: list[stream.Event] = []
        self._open = True

    @property
    def free_bytes(self) -> int:
        """What allocate can still give: the driver's word, so others' memory counts too."""
        return max(self.driver.memory_info()[0] - self._reserved_bytes, 0)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Memory in its exact size. Raises: CapacityError with need and have."""
        self._check(num_bytes)
        taken = address = self.driver.allocate(num_bytes)
        if address % PAGE_BYTES:
            self.driver.free(address)
            taken = self.driver.allocate(num_bytes + PAGE_BYTES)
            address = -(-taken // PAGE_BYTES) * PAGE_BYTES
        self._held[address] = taken
        return self._wrap(address, num_bytes)

    def release(self, memory: torch.Tensor) -> None:
        """Give back what allocate gave, after the work that may use it."""
        if memory.numel() == 0:
            return
        self.synchronize()
        self.driver.free(self._held.pop(memory.data_ptr()))

    def reserve(self, num_bytes: int) -> None:
        """Keep memory free for what is taken later, not through allocate. Raises: CapacityError."""
        self._check(num_bytes)
        self._reserved_bytes += num_bytes

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy; from pinned memory it runs beside compute."""
        self.compute.record(self._computed)
        self.copies.wait(self._computed)
        self.copies.copy_in(target.data_ptr(), source.data_ptr(), source.numel())

    def record(self) -> base.Event:
        """A point behind all copies enqueued so far."""
        event = self._idle.pop() if self._idle else stream.Event(self.driver)
        self.copies.record(event)
        return GpuEvent(event, self._idle)

    def wait(self, event: base.Event) -> None:
        """Compute enqueued from now on runs after `event`; the host does not wait."""
        assert isinstance(event, GpuEvent)
        self.compute.wait(event.event)

    def passed(self, event: base.Event) -> bool:
        """Whether the copies before `event` have ended."""
        assert isinstance(event, GpuEvent)
        return event.event.passed

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy inside the device, in order with compute."""
        self.compute.copy_inside(target.data_ptr(), source.data_ptr(), source.numel())

    def synchronize(self) -> None:
        """Wait on the host until both streams are empty."""
        self.copies.synchronize()
        self.compute.synchronize()

    def close(self) -> None:
        """End the streams, free all memory, leave the device; may be called twice."""
        if not self._open:
            return
        self._open = False
        self.synchronize()
        for taken in self._held.values():
            self.driver.free(taken)
        self._held.clear()
        for event in (self._computed, *self._idle):
            event.close()
        self.compute.close()
        self.copies.close()
        self.driver.close()

    def _check(self, num_bytes: int) -> None:
        free = self.free_bytes
        if num_bytes > free:
            raise CapacityError(
                f"the GPU needs {num_bytes} bytes more and has {free} of {self.total_bytes} free; "
                f"ask for fewer expert slots or a smaller context, or end what else uses the GPU",
                code="device_memory",
            )


def open_gpu(flavours: Iterable[Api] = (api.CUDA, api.HIP), index: int = 0) -> GpuDevice:
    """The GPU of this machine. Raises: EngineError("no_gpu") naming the next step."""
    return GpuDevice(Driver.open(flavours, index), wrap_on_gpu)


def wrap_on_gpu(address: int, num_bytes: int) -> torch.Tensor:
    """Device memory as a tensor of a torch that was built for the GPU."""
    return torch.as_tensor(_Described(address, num_bytes), device="cuda")


class _Described:
    """Memory in the words of the CUDA array interface, which torch reads on CUDA and HIP."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }

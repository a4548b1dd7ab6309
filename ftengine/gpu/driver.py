"""One GPU through its driver library: open, memory, copies, modules. No toolkit, no torch.

The library is opened by name and every call goes through `call`, which turns status codes into the
engine's errors. Streams, events and graphs: stream.py. Kernels: launcher.py.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ftengine.errors import CapacityError, EngineError
from ftengine.gpu import api
from ftengine.gpu.api import Api

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for, as Triton says it: cuda, 89, 32 or hip, gfx942, 64."""

    backend: str
    arch: str
    warp_size: int

    @property
    def label(self) -> str:
        """For file names and messages: sm_89, gfx1100."""
        return f"sm_{self.arch}" if self.backend == "cuda" else self.arch


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU. shared_bytes: most of one block. memory_ops: streams can wait for memory."""

    name: str
    target: Target
    total_bytes: int
    num_multiprocessors: int
    shared_bytes: int
    pci: str
    driver_version: int
    memory_ops: bool


class Driver:
    """One device of one driver library, in the process's primary context (shared with torch).

    Any thread may call, after `use` on that thread. Addresses are plain integers.
    """

    def __init__(self, library: Any, flavour: Api, index: int = 0) -> None:
        """Raises: EngineError("no_gpu") when there is no such device or a symbol is missing."""
        self.api = flavour
        self._functions = _functions(library, flavour)
        self._open = False
        self._index = index
        self._context = 0
        self.call("init", 0)
        count = self.read_int("device_count")
        if index >= count:
            raise EngineError(
                f"the {flavour.title} has {count} GPUs, number {index} was asked for; "
                f"choose a smaller number or the device cpu",
                code="no_gpu",
            )
        self._device = self._device_handle(index)
        if flavour.backend == "cuda":
            self._context = self.read_pointer("context_retain", self._device)
        self._open = True
        self.use()
        self.info = self._read_info()
        log.info(
            "gpu: %s, %s, driver %d",
            self.info.name,
            self.info.target.label,
            self.info.driver_version,
        )

    @classmethod
    def open(cls, flavours: Iterable[Api] = (api.CUDA, api.HIP), index: int = 0) -> Driver:
        """The first driver library that is installed. Raises: EngineError("no_gpu") naming all."""
        tried: list[str] = []
        for flavour in flavours:
            for name in flavour.libraries:
                try:
                    library = ctypes.CDLL(name)
                except OSError:
                    tried.append(name)
                    continue
                return cls(library, flavour, index)
        raise EngineError(
            f"no GPU driver library is installed (tried {', '.join(tried)}); "
            f"install the GPU's driver, or use the device cpu",
            code="no_gpu",
        )

    @property
    def context(self) -> int:
        """Handle of the primary context; 0 on HIP, which has none to show."""
        return self._context

    def use(self) -> None:
        """Make this device the calling thread's."""
        if self.api.backend == "cuda":
            self.call("context_use", self._context)
        else:
            self.call("device_use", self._index)

    def call(self, name: str, *arguments: Any) -> None:
        """One driver call. Raises: EngineError, CapacityError on lack of memory."""
        status = self.status(name, *arguments)
        if status != 0:
            raise self._error(name, status)

    def status(self, name: str, *arguments: Any) -> int:
        """One driver call whose status the caller wants to see."""
        return int(self._functions[name](*arguments))

    def read_int(self, name: str, *arguments: Any) -> int:
        """A call whose first parameter is where an int goes."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def read_pointer(self, name: str, *arguments: Any) -> int:
        """A call whose first parameter is where a handle or an address goes."""
        value = ctypes.c_void_p()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value or 0

    def read_pointer_last(self, name: str, *arguments: Any) -> int:
        """A call whose last parameter is where a handle goes."""
        value = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value or 0

    def memory_info(self) -> tuple[int, int]:
        """Bytes free on the device, for everybody, and bytes in all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("memory_info", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, num_bytes: int) -> int:
        """Device memory, at least 256-aligned. Raises: CapacityError with need and have."""
        try:
            return self.read_pointer("allocate", max(num_bytes, 1))
        except CapacityError:
            free, total = self.memory_info()
            raise CapacityError(
                f"the GPU needs {num_bytes} bytes more and has {free} of {total} free; ask for "
                f"fewer expert slots or a smaller context, or end what else uses the GPU",
                code="device_memory",
            ) from None

    def free(self, address: int) -> None:
        """Give back what allocate gave; waits for work that still uses it."""
        self.call("free", address)

    def allocate_host(self, num_bytes: int) -> int:
        """Pinned host memory that kernels may read and write. Raises: CapacityError."""
        return self.read_pointer("host_allocate", max(num_bytes, 1), api.HOST_PORTABLE_AND_MAPPED)

    def free_host(self, address: int) -> None:
        """Give back what allocate_host gave."""
        self.call("host_free", address)

    def register_host(self, address: int, num_bytes: int) -> None:
        """Pin memory that is filled already. Raises: EngineError, CapacityError when refused."""
        self.call("host_register", address, num_bytes, api.HOST_PORTABLE_AND_MAPPED)

    def unregister_host(self, address: int) -> None:
        """Let pinned memory go again."""
        self.call("host_unregister", address)

    def device_address(self, host_address: int) -> int:
        """Where kernels see pinned host memory."""
        return self.read_pointer("host_address", host_address, 0)

    def load_module(self, image: bytes) -> int:
        """Load a cubin or hsaco. Raises: EngineError when it is for another device."""
        return self.read_pointer("module_load", image)

    def module_function(self, module: int, name: str) -> int:
        """A kernel of a loaded module. Raises: EngineError naming the call."""
        return self.read_pointer("module_function", module, name.encode())

    def function_attribute(self, function: int, attribute: int) -> int:
        """One of api.FUNC_*."""
        return self.read_int("function_attribute", attribute, function)

    def close(self) -> None:
        """Leave the context; the driver frees what is left of it. May be called twice."""
        if self._open and self.api.backend == "cuda":
            self.call("context_release", self._device)
        self._open = False

    def _device_handle(self, index: int) -> int:
        return self.read_int("device_get", index)

    def _attribute(self, name: str) -> int:
        return self.read_int("device_attribute", self.api.attributes[name], self._device)

    def _read_info(self) -> DeviceInfo:
        name = ctypes.create_string_buffer(256)
        self.call("device_name", name, len(name), self._device)
        place = [self._attribute(part) for part in ("pci_domain", "pci_bus", "pci_device")]
        return DeviceInfo(
            name=name.value.decode("utf-8", "replace"),
            target=self._target(),
            total_bytes=self.memory_info()[1],
            num_multiprocessors=self._attribute("multiprocessors"),
            shared_bytes=self._attribute("shared_bytes"),
            pci="{:04x}:{:02x}:{:02x}.0".format(*place),
            driver_version=self.read_int("driver_version"),
            memory_ops="memory_ops" in self.api.attributes and bool(self._attribute("memory_ops")),
        )

    def _target(self) -> Target:
        if self.api.backend == "cuda":
            return Target("cuda", str(10 * self._attribute("major") + self._attribute("minor")), 32)
        properties = ctypes.create_string_buffer(api.HIP_PROPERTIES_BYTES)
        self.call("device_properties", properties, self._device)
        arch = ctypes.string_at(ctypes.addressof(properties) + api.HIP_PROPERTIES_ARCH)
        return Target("hip", arch.decode().split(":")[0], self._attribute("warp_size"))

    def _error(self, name: str, status: int) -> EngineError:
        function = _symbol(self.api, name)
        said = f"{function} gave {self._error_name(status)}"
        if status == api.OUT_OF_MEMORY:
            return CapacityError(
                f"{said}: not enough memory; end what else uses it, or use a smaller model",
                code="device_memory",
            )
        if status in api.DEVICE_LOST:
            return EngineError(
                f"{said}: the GPU stopped this process's work; load the model again",
                code="gpu_lost",
                retryable=True,
            )
        return EngineError(
            f"{said} on the {self.api.title}; see the log, or use the device cpu", code="gpu_call"
        )

    def _error_name(self, status: int) -> str:
        if self.api.backend != "cuda":
            return f"error {status}"
        text = ctypes.c_char_p()
        if self.status("error_name", status, ctypes.byref(text)) != 0 or text.value is None:
            return f"error {status}"
        return f"{text.value.decode()} ({status})"


def _symbol(flavour: Api, name: str) -> str:
    calls = {**api.CALLS, **api.CUDA_ONLY, **api.HIP_ONLY}
    return str(getattr(calls[name], flavour.backend))


def _functions(library: Any, flavour: Api) -> dict[str, Any]:
    """Typed functions of one library by our names. Raises: EngineError("no_gpu")."""
    own = api.CUDA_ONLY if flavour.backend == "cuda" else api.HIP_ONLY
    functions: dict[str, Any] = {}
    for name, call in {**api.CALLS, **own}.items():
        symbol = getattr(call, flavour.backend)
        try:
            function = getattr(library, symbol)
        except AttributeError:
            raise EngineError(
                f"the {flavour.title} has no {symbol}; it is too old, install a newer driver",
                code="no_gpu",
            ) from None
        function.argtypes = call.types
        function.restype = ctypes.c_int
        functions[name] = function
    return functions

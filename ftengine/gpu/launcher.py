"""Launching compiled kernels: the convention, argument packing, loaded modules.

Entry = the compiled kernel's name; parameters = the run-time arguments in order, then two pointers
(global scratch and profile scratch, null: compile_kernel.py refuses kernels that want them); block
= num_warps * warp_size threads in x; dynamic shared memory as compiled. The same in Triton 3.6 and
3.7, on CUDA and HIP; a test reads it off the compiled files.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftengine.errors import EngineError
from ftengine.gpu import api
from ftengine.gpu.driver import Driver
from ftengine.gpu.kernel_cache import CompiledKernel, KernelCache
from ftengine.gpu.kernel_table import ALIGN, Argument, Build, Kernel, KernelTable
from ftengine.gpu.stream import Stream

SHARED_WITHOUT_ASKING = 48 << 10
MOST_BLOCKS_YZ = 65535
_PACK = {
    "i1": "<b",
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "u64": "<Q",
    "fp32": "<f",
    "fp64": "<d",
}
_NULL = b"\0" * 8


@dataclass(frozen=True)
class LoadedKernel:
    """A build in the device's memory, ready to launch."""

    kernel: Kernel
    build: Build
    compiled: CompiledKernel
    function: int
    integers: Mapping[str, int] = field(default_factory=dict)


class Launcher:
    """Loads builds once and launches them; also while a stream captures.

    load must not run during a capture: prepare every build of a step first.
    """

    def __init__(self, driver: Driver, table: KernelTable, cache: KernelCache) -> None:
        self._driver = driver
        self._table = table
        self._cache = cache
        self._modules: list[int] = []
        self._loaded: dict[Build, LoadedKernel] = {}

    def load(self, build: Build) -> LoadedKernel:
        """The build on this device. Raises: EngineError when it needs more than the device has."""
        found = self._loaded.get(build)
        if found is None:
            found = self._loaded[build] = self._load(build)
        return found

    def launch(
        self, loaded: LoadedKernel, arguments: Mapping[str, int | float], stream: Stream
    ) -> None:
        """Enqueue one launch; arguments by name, addresses as integers.

        Raises: EngineError("kernel_call") naming the kernel and the argument that does not fit.
        """
        kernel = loaded.kernel
        packed = pack_arguments(kernel, arguments)
        grid = self._grid(loaded, arguments)
        if math.prod(grid) == 0:
            return
        buffers = [ctypes.create_string_buffer(item, len(item)) for item in packed]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        compiled = loaded.compiled
        self._driver.call(
            "launch",
            loaded.function,
            *grid,
            *(compiled.num_threads, 1, 1),
            compiled.shared_bytes,
            stream.handle,
            pointers,
            None,
        )

    def close(self) -> None:
        """Unload everything; may be called twice. Not while something runs."""
        modules, self._modules = self._modules, []
        self._loaded.clear()
        for module in modules:
            self._driver.call("module_unload", module)

    def _load(self, build: Build) -> LoadedKernel:
        info = self._driver.info
        compiled = self._cache.get(build, info.target)
        if compiled.shared_bytes > info.shared_bytes:
            raise EngineError(
                f"the GPU kernel {build.kernel} needs {compiled.shared_bytes} bytes of shared "
                f"memory, {info.name} has {info.shared_bytes}; use the device cpu",
                code="kernel_missing",
            )
        module = self._driver.load_module(compiled.image)
        self._modules.append(module)
        function = self._driver.module_function(module, compiled.entry)
        if compiled.shared_bytes > SHARED_WITHOUT_ASKING and info.target.backend == "cuda":
            self._driver.call("function_set", function, api.FUNC_MAX_SHARED, compiled.shared_bytes)
        integers = {name: value for name, value in build.constants if isinstance(value, int)}
        return LoadedKernel(self._table.kernel(build.kernel), build, compiled, function, integers)

    def _grid(
        self, loaded: LoadedKernel, arguments: Mapping[str, int | float]
    ) -> tuple[int, int, int]:
        integers = {name: value for name, value in arguments.items() if isinstance(value, int)}
        grid = loaded.kernel.grid({**loaded.integers, **integers})
        if min(grid) < 0 or max(grid[1:]) > MOST_BLOCKS_YZ or grid[0] >= 1 << 31:
            raise EngineError(
                f"the GPU kernel {loaded.kernel.name} would have {grid} blocks; at most 2^31 - 1 "
                f"in x and {MOST_BLOCKS_YZ} in y and z can be",
                code="kernel_call",
            )
        return grid


def pack_arguments(kernel: Kernel, arguments: Mapping[str, int | float]) -> list[bytes]:
    """The parameters of one launch, the two scratch pointers included.

    Raises: EngineError("kernel_call") naming the kernel and the argument.
    """
    known = {argument.name for argument in kernel.arguments}
    unknown = sorted(arguments.keys() - known) or sorted(known - arguments.keys())
    if unknown:
        raise EngineError(
            f"the GPU kernel {kernel.name}: argument {unknown[0]} is unknown or was not given; "
            f"it takes {', '.join(argument.name for argument in kernel.arguments)}",
            code="kernel_call",
        )
    packed = [_packed(kernel, item, arguments[item.name]) for item in kernel.arguments]
    return [*packed, _NULL, _NULL]


def _packed(kernel: Kernel, argument: Argument, value: int | float) -> bytes:
    if argument.is_aligned and value % ALIGN:
        raise EngineError(
            f"the GPU kernel {kernel.name}: {argument.name} = {value:#x} is not a multiple "
            f"of {ALIGN}, which its compiled form relies on",
            code="kernel_call",
        )
    pattern = "<Q" if argument.is_pointer else _PACK[argument.type]
    try:
        return struct.pack(pattern, value)
    except struct.error:
        raise EngineError(
            f"the GPU kernel {kernel.name}: {argument.name} = {value} is no {argument.type}",
            code="kernel_call",
        ) from None

"""The two driver libraries as data: symbols, argument types, constants, library names.

CUDA's driver API and HIP's run-time API are nearly the same calls under two names; what differs
beyond names is one line each in driver.py. Checked against cuda.h 13.0 and hip_runtime_api.h 7.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

OUT_OF_MEMORY = 2
NOT_READY = 600
DEVICE_LOST = frozenset({214, 700, 702, 709, 715, 716, 717, 718, 719, 720})
"""Errors after which a context is of no more use: faults, ECC, a launch that failed."""

STREAM_NON_BLOCKING = 1
EVENT_NO_TIMING = 2
EVENT_TIMING = 0
WAIT_EQUAL = 1
HOST_PORTABLE_AND_MAPPED = 3
CAPTURE_THREAD_LOCAL = 1
FUNC_LOCAL_BYTES = 3
FUNC_NUM_REGISTERS = 4
FUNC_MAX_SHARED = 8
HIP_PROPERTIES_BYTES = 4096
HIP_PROPERTIES_ARCH = 1160
"""Offset of gcnArchName in hipDeviceProp_tR0600 (1472 bytes; more is given to be safe)."""

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_P = ctypes.c_void_p
_I = ctypes.c_int
_U = ctypes.c_uint
_SIZE = ctypes.c_size_t
_U64 = ctypes.c_uint64
_LAUNCH = (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P)


@dataclass(frozen=True)
class Call:
    """One function: its two names and CUDA's argument types. Pointers to results are void*."""

    cuda: str
    hip: str
    types: tuple[type, ...]


@dataclass(frozen=True)
class Api:
    """One driver library. backend: Triton's word for it."""

    backend: str
    title: str
    libraries: tuple[str, ...]
    attributes: Mapping[str, int]


CALLS: Mapping[str, Call] = {
    "init": Call("cuInit", "hipInit", (_U,)),
    "driver_version": Call("cuDriverGetVersion", "hipDriverGetVersion", (_P,)),
    "device_count": Call("cuDeviceGetCount", "hipGetDeviceCount", (_P,)),
    "device_get": Call("cuDeviceGet", "hipDeviceGet", (_P, _I)),
    "device_name": Call("cuDeviceGetName", "hipDeviceGetName", (_P, _I, _I)),
    "device_attribute": Call("cuDeviceGetAttribute", "hipDeviceGetAttribute", (_P, _I, _I)),
    "memory_info": Call("cuMemGetInfo_v2", "hipMemGetInfo", (_P, _P)),
    "allocate": Call("cuMemAlloc_v2", "hipMalloc", (_P, _SIZE)),
    "free": Call("cuMemFree_v2", "hipFree", (_P,)),
    "host_allocate": Call("cuMemHostAlloc", "hipHostMalloc", (_P, _SIZE, _U)),
    "host_free": Call("cuMemFreeHost", "hipHostFree", (_P,)),
    "host_register": Call("cuMemHostRegister_v2", "hipHostRegister", (_P, _SIZE, _U)),
    "host_unregister": Call("cuMemHostUnregister", "hipHostUnregister", (_P,)),
    "host_address": Call("cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer", (_P, _P, _U)),
    "copy_in": Call("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", (_P, _P, _SIZE, _P)),
    "copy_out": Call("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (_P, _P, _SIZE, _P)),
    "copy_inside": Call("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", (_P, _P, _SIZE, _P)),
    "fill": Call("cuMemsetD8Async", "hipMemsetD8Async", (_P, ctypes.c_ubyte, _SIZE, _P)),
    "stream_create": Call("cuStreamCreate", "hipStreamCreateWithFlags", (_P, _U)),
    "stream_destroy": Call("cuStreamDestroy_v2", "hipStreamDestroy", (_P,)),
    "stream_synchronize": Call("cuStreamSynchronize", "hipStreamSynchronize", (_P,)),
    "stream_wait_event": Call("cuStreamWaitEvent", "hipStreamWaitEvent", (_P, _P, _U)),
    "event_create": Call("cuEventCreate", "hipEventCreateWithFlags", (_P, _U)),
    "event_destroy": Call("cuEventDestroy_v2", "hipEventDestroy", (_P,)),
    "event_record": Call("cuEventRecord", "hipEventRecord", (_P, _P)),
    "event_query": Call("cuEventQuery", "hipEventQuery", (_P,)),
    "event_synchronize": Call("cuEventSynchronize", "hipEventSynchronize", (_P,)),
    "event_elapsed": Call("cuEventElapsedTime", "hipEventElapsedTime", (_P, _P, _P)),
    "host_function": Call("cuLaunchHostFunc", "hipLaunchHostFunc", (_P, _P, _P)),
    "capture_begin": Call("cuStreamBeginCapture_v2", "hipStreamBeginCapture", (_P, _I)),
    "capture_end": Call("cuStreamEndCapture", "hipStreamEndCapture", (_P, _P)),
    "graph_instantiate": Call(
        "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags", (_P, _P, _U64)
    ),
    "graph_launch": Call("cuGraphLaunch", "hipGraphLaunch", (_P, _P)),
    "graph_destroy": Call("cuGraphDestroy", "hipGraphDestroy", (_P,)),
    "graph_exec_destroy": Call("cuGraphExecDestroy", "hipGraphExecDestroy", (_P,)),
    "module_load": Call("cuModuleLoadData", "hipModuleLoadData", (_P, _P)),
    "module_unload": Call("cuModuleUnload", "hipModuleUnload", (_P,)),
    "module_function": Call(
        "cuModuleGetFunction", "hipModuleGetFunction", (_P, _P, ctypes.c_char_p)
    ),
    "function_attribute": Call("cuFuncGetAttribute", "hipFuncGetAttribute", (_P, _I, _P)),
    "function_set": Call("cuFuncSetAttribute", "hipFuncSetAttribute", (_P, _I, _I)),
    "launch": Call("cuLaunchKernel", "hipModuleLaunchKernel", _LAUNCH),
}
CUDA_ONLY: Mapping[str, Call] = {
    "context_retain": Call("cuDevicePrimaryCtxRetain", "", (_P, _I)),
    "context_release": Call("cuDevicePrimaryCtxRelease_v2", "", (_I,)),
    "context_use": Call("cuCtxSetCurrent", "", (_P,)),
    "error_name": Call("cuGetErrorName", "", (_I, _P)),
    "write_value": Call("cuStreamWriteValue32_v2", "", (_P, _P, ctypes.c_uint32, _U)),
    "wait_value": Call("cuStreamWaitValue32_v2", "", (_P, _P, ctypes.c_uint32, _U)),
}
HIP_ONLY: Mapping[str, Call] = {
    "device_use": Call("", "hipSetDevice", (_I,)),
    "device_properties": Call("", "hipGetDevicePropertiesR0600", (_P, _I)),
}

CUDA = Api(
    backend="cuda",
    title="NVIDIA driver",
    libraries=("libcuda.so.1", "libcuda.so", "nvcuda.dll"),
    attributes={
        "multiprocessors": 16,
        "major": 75,
        "minor": 76,
        "shared_bytes": 97,
        "pci_domain": 50,
        "pci_bus": 33,
        "pci_device": 34,
        "memory_ops": 122,
    },
)
HIP = Api(
    backend="hip",
    title="AMD run time",
    libraries=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "amdhip64.dll"),
    attributes={
        "multiprocessors": 63,
        "warp_size": 87,
        "shared_bytes": 74,
        "pci_domain": 69,
        "pci_bus": 67,
        "pci_device": 68,
    },
)
"""HIP's waits want memory of a special kind; there the hand-off uses host functions instead."""

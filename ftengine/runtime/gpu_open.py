"""Which device an engine runs on, and the GPU opened for it: driver, launcher, torch's stream."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ftengine.config import EngineConfig, kernel_folder
from ftengine.device.cuda import GpuDevice, open_gpu
from ftengine.errors import EngineError
from ftengine.gpu import api
from ftengine.gpu.api import Api
from ftengine.gpu.compile_kernel import compile_kernel
from ftengine.gpu.driver import Driver
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.dispatch import Kernels
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.triton.builds import TABLE

log = logging.getLogger(__name__)

FLAVOURS = {"cuda": (api.CUDA,), "hip": (api.HIP,), "gpu": (api.CUDA, api.HIP)}
GPUS = ("cuda", "hip")
"""Devices by name once they are settled."""
NO_GPU = "no_gpu"


@dataclass(frozen=True)
class DeviceChoice:
    """The config with a device that is there. automatic: it was not asked for by name."""

    config: EngineConfig
    notes: tuple[str, ...] = ()
    automatic: bool = False


def choose_device(config: EngineConfig) -> DeviceChoice:
    """Settle "auto" and "gpu". Auto is the GPU where there is a driver and a torch for it.

    Raises: EngineError("no_gpu") where a GPU was asked for and there is none, with the next step.
    """
    asked = config.compute.device
    if asked in ("cpu", "emulated"):
        return DeviceChoice(config)
    try:
        backend = installed_backend(FLAVOURS.get(asked, FLAVOURS["gpu"]))
        check_torch(backend)
    except EngineError as error:
        if asked != "auto" or error.code != NO_GPU:
            raise
        driver_is_there = "torch" in error.message
        return DeviceChoice(on_cpu(config), (error.message,) if driver_is_there else (), True)
    compute = dataclasses.replace(config.compute, device=backend)
    return DeviceChoice(dataclasses.replace(config, compute=compute), (), asked == "auto")


def on_cpu(config: EngineConfig) -> EngineConfig:
    """The same engine without a device. Raises: RequestError where its settings need one."""
    return dataclasses.replace(config, compute=dataclasses.replace(config.compute, device="cpu"))


def installed_backend(flavours: Iterable[Api]) -> str:
    """ "cuda" or "hip": the first driver with a GPU behind it. Raises: EngineError("no_gpu")."""
    driver = Driver.open(flavours)
    try:
        return driver.api.backend
    finally:
        driver.close()


def check_torch(backend: str) -> None:
    """Raises: EngineError("no_gpu") where torch was built without this kind of device."""
    built = torch.version.hip if backend == "hip" else torch.version.cuda
    if built is None:
        kind = "ROCm" if backend == "hip" else "CUDA"
        raise EngineError(
            f"a GPU driver is there, but the installed torch {torch.__version__} was built without "
            f"{kind}; install torch's {kind} build (see pytorch.org), or use --device cpu",
            code=NO_GPU,
        )


def open_device(config: EngineConfig) -> GpuDevice:
    """The GPU, with its stream as torch's own on this thread."""
    device = open_gpu(FLAVOURS[config.compute.device])
    stream = torch.cuda.ExternalStream(device.compute.handle)  # type: ignore[no-untyped-call]
    torch.cuda.set_stream(stream)
    return device


def limit_device(device: GpuDevice, most_bytes: int) -> None:
    """Take at most so much of the device's memory; 0 = what is free."""
    if most_bytes:
        device.reserve(max(device.free_bytes - most_bytes, 0))


def make_tools(config: EngineConfig, device: GpuDevice, kernels: Kernels) -> GpuTools:
    """The launcher with shipped and locally compiled kernels; kernels: of the CPU branch."""
    cache = KernelCache(TABLE, kernel_folder(), compile_kernel)
    native = kernels if isinstance(kernels, NativeKernels) else None
    dot = "bf16" if config.compute.compute == "bfloat16" else "f32"
    return GpuTools(device, Launcher(device.driver, TABLE, cache), native, dot)

"""Prints the free bytes of all GPUs together, or nothing. A process of its own: python -m.

NVIDIA's management library answers without a context, AMD's kernel driver in files. Neither needs
a toolkit, and both count every program's memory.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64))


def nvidia_free(library: Any) -> int | None:
    """Free bytes by the management library; None where it refuses."""
    if library.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0 or count.value == 0:
            return None
        return sum(_free_of(library, index) for index in range(count.value))
    finally:
        library.nvmlShutdown()


def amd_free(root: Path = Path("/")) -> int | None:
    """Free bytes by the kernel driver's files; None where there is no such GPU."""
    found = None
    for device in sorted((root / "sys/class/drm").glob("card*/device")):
        try:
            total = int((device / "mem_info_vram_total").read_text("ascii"))
            used = int((device / "mem_info_vram_used").read_text("ascii"))
        except (OSError, ValueError):
            continue
        found = (found or 0) + total - used
    return found


def free_bytes() -> int | None:
    """Of all GPUs that are found."""
    parts = [amd_free()]
    for name in LIBRARIES:
        try:
            parts.append(nvidia_free(ctypes.CDLL(name)))
        except OSError:
            continue
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _free_of(library: Any, index: int) -> int:
    device, memory = ctypes.c_void_p(), _Memory()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
        return 0
    if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
        return 0
    return int(memory.free)


if __name__ == "__main__":
    sys.stdout.write("" if (found := free_bytes()) is None else str(found))

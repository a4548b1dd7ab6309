"""Builds fake_libcuda.cpp and steers it: the log, orders to fail, kernels as Python functions."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ftengine.gpu import api
from ftengine.gpu.api import Api
from ftengine.gpu.driver import Driver

SOURCE = Path(__file__).with_name("fake_libcuda.cpp")
ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "native"
MEMORY_BYTES = 256 << 20
HandlerType = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_uint, ctypes.c_uint
)


def compiler() -> list[str] | None:
    """The C++ compiler that the native build would use; None where there is none."""
    named = os.environ.get("CXX", "").split()
    for command in (named, ["c++"], ["g++"], ["clang++"]):
        if command and shutil.which(command[0]):
            return command
    found = subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True)
    return [sys.executable, "-m", "ziglang", "c++"] if found.returncode == 0 else None


def build(command: list[str], folder: Path) -> Path:
    """The stand-in, and the native hand-off, as one shared library; kept between runs."""
    sources = [SOURCE, NATIVE / "src/hand_off.cpp"]
    headers = (SOURCE.with_name("fake_machine.h"), NATIVE / "include/ft/hand_off.h")
    texts = [path.read_bytes() for path in (*sources, *headers)]
    key = hashlib.sha256(b"".join([repr(command).encode(), *texts])).hexdigest()[:16]
    kept = folder / f"fake_libcuda-{key}.so"
    if kept.exists():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{kept.name}.{os.getpid()}"
    options = ["-std=c++20", "-O0", "-shared", "-fPIC", "-pthread", f"-I{NATIVE / 'include'}"]
    subprocess.run([*command, *options, *map(str, sources), "-o", str(made)], check=True)
    made.replace(kept)
    return kept


def wrap(address: int, num_bytes: int) -> torch.Tensor:
    """The stand-in's device memory as a tensor."""
    return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)


class HipNames:
    """The stand-in under libamdhip64's names."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._names = {call.hip: call.cuda for call in api.CALLS.values()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, self._names.get(name, name))


class FakeGpu:
    """One loaded stand-in. Reset before each test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self._keep: list[Any] = []
        for name in ("fake_live_bytes", "fake_pinned_bytes"):
            getattr(self.library, name).restype = ctypes.c_long
        self.library.fake_reset.argtypes = (ctypes.c_size_t, ctypes.c_int)
        self.library.fake_set.argtypes = (ctypes.c_char_p, ctypes.c_long)

    def reset(self, total_bytes: int = MEMORY_BYTES, arch: int = 89) -> None:
        """As after a start of the machine, but for memory that is still held."""
        self.library.fake_reset(total_bytes, arch)
        self._keep.clear()

    def driver(self, flavour: Api = api.CUDA) -> Driver:
        """Our driver on it."""
        return Driver(self.library if flavour is api.CUDA else HipNames(self.library), flavour)

    def set(self, name: str, value: int) -> None:
        """delay_us, devices, memory_ops, pin_limit or sticky."""
        self.library.fake_set(name.encode(), value)

    def fail(self, call: str, status: int, times: int = 1) -> None:
        """Let the next calls of one function fail."""
        self.library.fake_fail(call.encode(), status, times)

    def describe(self, kernel: str, sizes: Sequence[int]) -> None:
        """Bytes of each parameter; without it a launch is recorded without its parameters."""
        self.library.fake_describe(kernel.encode(), (ctypes.c_int * len(sizes))(*sizes), len(sizes))

    def handle(self, kernel: str, function: Callable[[Any, tuple[int, int, int]], None]) -> None:
        """Run a Python function where the kernel would run; given pointers to its parameters."""
        handler = HandlerType(lambda pointers, x, y, z: function(pointers, (x, y, z)))
        self._keep.append(handler)
        self.library.fake_handle(kernel.encode(), handler)

    def log(self, pattern: str = "") -> list[str]:
        """Lines so far in which the pattern is found."""
        size = 1 << 16
        while True:
            buffer = ctypes.create_string_buffer(size)
            needed = int(self.library.fake_log(buffer, size))
            if needed >= 0:
                lines = buffer.value.decode().splitlines()
                return [line for line in lines if re.search(pattern, line)]
            size = -needed

    def clear_log(self) -> None:
        """Forget it."""
        self.library.fake_clear_log()

    @property
    def live_bytes(self) -> int:
        """Device memory that is held."""
        return int(self.library.fake_live_bytes())

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is pinned."""
        return int(self.library.fake_pinned_bytes())

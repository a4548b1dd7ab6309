"""What this machine is: RAM (cgroup limits included), CPU, GPUs seen. No torch, no probing by use.

Linux answers come from /proc and /sys below `root`, so tests can hand in a folder; macOS and
Windows answers come from the system's own calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ftman.supervisor.policy_events import Memory

ROOT = Path("/")
DRIVER_LIMIT_S = 5.0
"""How long NVIDIA's tool may take; it hangs where its driver does."""
_UNLIMITED = 1 << 60
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


@dataclass(frozen=True)
class Cpu:
    """cores: what this process may use at once (affinity and cgroup quota counted)."""

    model: str
    flags: tuple[str, ...]
    cores: int


@dataclass(frozen=True)
class Gpu:
    """A display or compute device the kernel knows. memory_bytes 0 = not told."""

    vendor: str
    name: str
    memory_bytes: int = 0
    driver: str = ""


@dataclass(frozen=True)
class Gpus:
    """What was seen, and a line for people about what was not."""

    seen: tuple[Gpu, ...]
    note: str


def memory(root: Path = ROOT) -> Memory:
    """RAM in all and available to this process. Units: bytes."""
    if sys.platform == "linux" or root != ROOT:
        total, available = _meminfo(root)
        for limit, used in _cgroup_memory(root):
            total = min(total, limit)
            available = min(available, max(0, limit - used))
        return Memory(total, available)
    if sys.platform == "darwin":
        return _darwin_memory()
    return _windows_memory()


def private_bytes(pid: int, root: Path = ROOT) -> int:
    """Memory of a process that it shares with no file and no other; 0 where that is not told."""
    try:
        words = (root / f"proc/{pid}/statm").read_text("ascii").split()
        return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


def oom_kills(root: Path = ROOT) -> int | None:
    """Processes that the system has ended for want of memory since it started; None: not told."""
    try:
        text = (root / "proc/vmstat").read_text("ascii", "replace")
    except OSError:
        return None
    lines = (line.partition(" ") for line in text.splitlines())
    return next((int(value) for name, _, value in lines if name == "oom_kill"), None)


def cpu(root: Path = ROOT) -> Cpu:
    """Model name, the features that kernels choose by, and usable cores."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    present = set((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name") or platform.processor() or platform.machine()
    return Cpu(model, tuple(flag for flag in _FLAGS if flag in present), _cores(root))


def gpus(root: Path = ROOT, *, ask_driver: bool = True) -> Gpus:
    """GPUs from nvidia-smi and the PCI list; blocks up to 5 s while the driver answers."""
    nvidia, note = _ask_nvidia() if ask_driver else ((), "")
    others = [gpu for gpu in _pci_gpus(root) if not (nvidia and gpu.vendor == "NVIDIA")]
    seen = (*nvidia, *others)
    if not seen:
        return Gpus((), "no GPU seen (no NVIDIA, AMD or Intel device; not an error)")
    if note and any(gpu.vendor == "NVIDIA" for gpu in others):
        return Gpus(seen, f"an NVIDIA device is there, but its driver is not usable: {note}")
    return Gpus(seen, f"{len(seen)} seen")


def machine_key(root: Path = ROOT) -> str:
    """One line that changes when measured rates may: CPU, features, cores, RAM, GPUs."""
    processor = cpu(root)
    gib = round(memory(root).total_bytes / 2**30)
    devices = "+".join(f"{gpu.name}/{gpu.driver}/{gpu.memory_bytes}" for gpu in gpus(root).seen)
    parts = (processor.model, ",".join(processor.flags), f"{processor.cores}c", f"{gib}GiB")
    return "|".join((*parts, devices or "no-gpu"))


def _meminfo(root: Path) -> tuple[int, int]:
    values = {}
    for line in (root / "proc/meminfo").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "MemFree"):
            values[name] = int(rest.split()[0]) * 1024
    total = values["MemTotal"]
    return total, values.get("MemAvailable", values.get("MemFree", total))


def _cgroup_folders(root: Path, controller: str) -> list[tuple[Path, int]]:
    """Folders of our cgroup and its parents with their version, for one v1 controller or v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", controller) and controller not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        top = root / "sys/fs/cgroup"
        top = top / controllers if version == 1 else top
        folder = top / place.lstrip("/")
        # In a container the path may be the host's and not exist here; the top then holds ours.
        while folder != top:
            found.append((folder, version))
            folder = folder.parent
        found.append((top, version))
    return found


def _cgroup_memory(root: Path) -> list[tuple[int, int]]:
    """(limit, used) of every limited cgroup we are in; file cache that can be dropped is free."""
    pairs = []
    for folder, version in _cgroup_folders(root, "memory"):
        limit_name, used_name, cache = (
            ("memory.max", "memory.current", "inactive_file")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        limit = _number(folder / limit_name)
        if limit is None or limit >= _UNLIMITED:
            continue
        used = _number(folder / used_name) or 0
        pairs.append((limit, max(0, used - _stat_value(folder / "memory.stat", cache))))
    return pairs


def _cores(root: Path) -> int:
    count = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        count = float(len(os.sched_getaffinity(0)))
    for folder, version in _cgroup_folders(root, "cpu"):
        if version == 2:
            words = (_text(folder / "cpu.max") or "max").split()
            quota = None if words[0] == "max" else int(words[0])
            period = int(words[1]) if len(words) > 1 else 100_000
        else:
            quota = _number(folder / "cpu.cfs_quota_us")
            period = _number(folder / "cpu.cfs_period_us") or 100_000
        if quota is not None and quota > 0:
            count = min(count, quota / period)
    return max(1, math.ceil(count))


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:  # absent, or "max"
        return None


def _stat_value(path: Path, name: str) -> int:
    for line in (_text(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _pci_gpus(root: Path) -> list[Gpu]:
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = _VENDORS.get(_text(device / "vendor") or "")
        # PCI class 03 is display, 12 is processing accelerators.
        if vendor and (_text(device / "class") or "")[:4] in ("0x03", "0x12"):
            vram = _number(device / "mem_info_vram_total") or 0
            found.append(Gpu(vendor, f"{vendor} {_text(device / 'device') or ''}".strip(), vram))
    return found


def _ask_nvidia() -> tuple[tuple[Gpu, ...], str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return (), "nvidia-smi is not installed"
    query = [tool, "--query-gpu=name,memory.total,driver_version"]
    query.append("--format=csv,noheader,nounits")
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=DRIVER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi failed: {type(error).__name__}"
    if answer.returncode != 0:
        text = (answer.stdout or answer.stderr).strip().splitlines()
        return (), text[0] if text else f"nvidia-smi ended with {answer.returncode}"
    return parse_nvidia_smi(answer.stdout), ""


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """Read lines of "name, MiB, driver"."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 3:
            mib = int(words[1]) if words[1].isdigit() else 0
            found.append(Gpu("NVIDIA", words[0], mib << 20, words[2]))
    return tuple(found)


def _darwin_memory() -> Memory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        answer = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Memory(total, total // 2)
    return Memory(total, parse_vm_stat(answer.stdout))


def parse_vm_stat(text: str) -> int:
    """Bytes that macOS can give at once: free, inactive, speculative and purgeable pages."""
    first, *rest = text.splitlines() or [""]
    page_bytes = int(first.partition("page size of ")[2].split(" ")[0] or 4096)
    kinds = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")
    pages = 0
    for line in rest:
        name, _, value = line.partition(":")
        if name in kinds:
            pages += int(value.strip().rstrip("."))
    return pages * page_bytes


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 5),
    )


def _windows_memory() -> Memory:
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009 - only Windows has it
    kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return Memory(int(status.total), int(status.available))

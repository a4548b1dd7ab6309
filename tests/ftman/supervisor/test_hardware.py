"""What the machine is, read from a folder that looks like / of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftman.supervisor import hardware
from ftman.supervisor.policy_events import Memory


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\n"}


def test_memory_without_a_cgroup(tmp_path: Path) -> None:
    assert hardware.memory(lay(tmp_path, MEMINFO)) == Memory(1_024_000, 614_400)


def test_memory_takes_the_tightest_cgroup_and_counts_cache_as_free(tmp_path: Path) -> None:
    group = {
        "proc/self/cgroup": "0::/user/app\n",
        "sys/fs/cgroup/user/app/memory.max": "max\n",
        "sys/fs/cgroup/user/memory.max": "500000\n",
        "sys/fs/cgroup/user/memory.current": "450000\n",
        "sys/fs/cgroup/user/memory.stat": "anon 1\ninactive_file 150000\n",
    }
    assert hardware.memory(lay(tmp_path, {**MEMINFO, **group})) == Memory(500_000, 200_000)


def test_memory_of_a_version_1_cgroup(tmp_path: Path) -> None:
    group = {
        "proc/self/cgroup": "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "400000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "100000\n",
    }
    assert hardware.memory(lay(tmp_path, {**MEMINFO, **group})) == Memory(400_000, 300_000)


def test_cpu_quota_limits_the_cores(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "model name\t: Test 9000\nflags\t: fpu avx2 fma avx512_bf16 xyz\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "50000 100000\n",
    }
    found = hardware.cpu(lay(tmp_path, files))
    assert found == hardware.Cpu("Test 9000", ("avx2", "fma", "avx512_bf16"), 1)


def test_pci_devices_of_display_class_are_gpus(tmp_path: Path) -> None:
    files = {
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        "sys/bus/pci/devices/0000:01:00.0/device": "0x2684\n",
        "sys/bus/pci/devices/0000:02:00.0/vendor": "0x8086\n",
        "sys/bus/pci/devices/0000:02:00.0/class": "0x020000\n",
    }
    found = hardware.gpus(lay(tmp_path, files), ask_driver=False)
    assert found.seen == (hardware.Gpu("NVIDIA", "NVIDIA 0x2684"),)


def test_no_gpu_is_said_and_is_not_an_error(tmp_path: Path) -> None:
    found = hardware.gpus(tmp_path, ask_driver=False)
    assert found == hardware.Gpus((), "no GPU seen (no NVIDIA, AMD or Intel device; not an error)")


def test_nvidia_smi_answer_is_read() -> None:
    (gpu,) = hardware.parse_nvidia_smi("NVIDIA RTX 4090, 24564, 560.35\n")
    assert gpu == hardware.Gpu("NVIDIA", "NVIDIA RTX 4090", 24564 << 20, "560.35")


def test_vm_stat_answer_is_read() -> None:
    text = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free: 10.\n"
    assert hardware.parse_vm_stat(text + "Pages active: 7.\nPages inactive: 5.\n") == 15 * 16384


def test_machine_key_is_stable_and_changes_with_the_machine(tmp_path: Path) -> None:
    root = lay(tmp_path, {**MEMINFO, "proc/cpuinfo": "model name: A\nflags: avx2\n"})
    first = hardware.machine_key(root)
    assert first == hardware.machine_key(root)
    lay(root, {"proc/cpuinfo": "model name: B\nflags: avx2\n"})
    assert hardware.machine_key(root) != first


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="Linux only")
def test_this_machine_answers() -> None:
    found = hardware.memory()
    assert 0 < found.available_bytes <= found.total_bytes
    assert hardware.cpu().cores >= 1


def test_ends_for_want_of_memory_are_counted_where_the_system_tells(tmp_path: Path) -> None:
    assert hardware.oom_kills(tmp_path) is None
    lay(tmp_path, {"proc/vmstat": "pgfault 12\noom_kill 3\nballoon_inflate 0\n"})
    assert hardware.oom_kills(tmp_path) == 3
    lay(tmp_path, {"proc/vmstat": "pgfault 12\n"})
    assert hardware.oom_kills(tmp_path) is None

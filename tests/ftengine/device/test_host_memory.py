"""Free memory as the machine and the control groups of both versions tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftengine.device.host_memory import available_bytes

GIB = 1 << 30


def machine(folder: Path, groups: str, free: int = 16 * GIB) -> tuple[Path, Path]:
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {free // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    cgroups.mkdir()
    return proc, cgroups


def group(folder: Path, limit: str, used: int, cache: int, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = version == 1
    (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(limit + "\n")
    (folder / ("memory.usage_in_bytes" if first else "memory.current")).write_text(str(used))
    key = "total_inactive_file" if first else "inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\n{key} {cache}\n")


def test_machine_without_groups(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "")
    assert available_bytes(proc, cgroups) == 16 * GIB
    assert available_bytes(tmp_path / "none", cgroups) is None


@pytest.mark.parametrize(
    ("version", "listing", "root"),
    [
        (2, "0::/user/app\n", ""),
        (2, "0::/user/app\n", "unified"),
        (1, "4:memory:/user/app\n", "memory"),
    ],
)
def test_tightest_group_on_the_way_up_decides(
    version: int, listing: str, root: str, tmp_path: Path
) -> None:
    proc, cgroups = machine(tmp_path, "9:cpu:/elsewhere\n" + listing)
    base = cgroups / root
    none = "max" if version == 2 else str((1 << 63) - 4096)
    group(base / "user" / "app", none, 1, 0, version)
    assert available_bytes(proc, cgroups) == 16 * GIB
    group(base / "user", str(4 * GIB), 3 * GIB, GIB // 2, version)
    assert available_bytes(proc, cgroups) == GIB + GIB // 2
    group(base / "user" / "app", str(2 * GIB), 2 * GIB, 0, version)
    assert available_bytes(proc, cgroups) == 0


def test_every_file_page_of_a_group_can_be_had_back(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/app\n4:memory:/app\n")
    for version, root, prefix in ((2, cgroups, ""), (1, cgroups / "memory", "total_")):
        group(root / "app", str(4 * GIB), 3 * GIB, 0, version)
        stat = f"{prefix}inactive_file {GIB // 4}\n{prefix}active_file {GIB // 2}\nshmem 7\n"
        (root / "app" / "memory.stat").write_text(stat)
        assert available_bytes(proc, cgroups) == GIB + 3 * GIB // 4


def test_limit_that_slows_down_counts_as_one_that_refuses(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/app\n")
    group(cgroups / "app", "max", GIB, 0, 2)
    (cgroups / "app" / "memory.high").write_text(str(2 * GIB))
    assert available_bytes(proc, cgroups) == GIB
    group(cgroups / "app", str(3 * GIB // 2), GIB, 0, 2)
    assert available_bytes(proc, cgroups) == GIB // 2


def test_container_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/docker/0123\n")
    group(cgroups, str(3 * GIB), GIB, 0, 2)
    assert available_bytes(proc, cgroups) == 2 * GIB

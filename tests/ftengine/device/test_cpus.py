"""CPUs a process may use: quotas of both kinds of control groups, from its own up to the root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftengine.device.cpus import cpu_quota, usable_cpus


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "ascii")


def system(tmp_path: Path, listing: str, files: dict[str, str]) -> tuple[Path, Path]:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    write(proc / "self" / "cgroup", listing)
    for name, text in files.items():
        write(groups / name, text)
    return proc, groups


@pytest.mark.parametrize(
    ("listing", "files", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/not/mounted\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("0::/a\n", {"unified/a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a\n", {"a/cpu.max": "nonsense\n"}, None),
        ("0::/a\n", {}, None),
        (
            "4:cpu,cpuacct:/a\n0::/\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_the_smallest_quota_counts(
    tmp_path: Path, listing: str, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(*system(tmp_path, listing, files)) == quota


def test_a_quota_limits_threads_and_never_below_one(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    small = system(tmp_path / "small", "0::/\n", {"cpu.max": "20000 100000\n"})
    wide = system(tmp_path / "wide", "0::/\n", {"cpu.max": "99900000 100000\n"})
    assert usable_cpus(*small) == 1
    assert usable_cpus(*wide) == allowed


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path / "none", tmp_path / "none") >= 1

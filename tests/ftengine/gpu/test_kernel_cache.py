"""Compiled kernels on disk: keys, damage, shipped folders, machines without Triton."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftengine.errors import EngineError
from ftengine.gpu import kernel_cache
from ftengine.gpu.driver import Target
from ftengine.gpu.kernel_cache import (
    CompiledKernel,
    KernelCache,
    file_name,
    read_kernel,
    source_hash,
    write_kernel,
)
from ftengine.gpu.kernel_table import Build, Kernel
from ftman import faults
from tests.ftengine.gpu.sample_table import SCALE, SCALE_32, SQUARE_128, TABLE

ADA = Target("cuda", "89", 32)
CODE = CompiledKernel(b"\0machine\ncode", "scale_rows", 2, 32, 512, "3.9.9")


class Counting:
    """A compiler that counts."""

    def __init__(self) -> None:
        self.builds: list[Build] = []

    def __call__(self, kernel: Kernel, build: Build, target: Target) -> CompiledKernel:
        self.builds.append(build)
        return replace(CODE, triton=kernel_cache.installed_triton() or "none")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: "3.9.9")


def test_a_kernel_file_gives_back_what_was_written(tmp_path: Path) -> None:
    write_kernel(tmp_path / "a.kernel", CODE)
    assert read_kernel(tmp_path / "a.kernel") == CODE


@pytest.mark.parametrize("at", [3, -40, -1])
def test_a_damaged_kernel_file_counts_as_none(tmp_path: Path, at: int) -> None:
    write_kernel(tmp_path / "a.kernel", CODE)
    data = bytearray((tmp_path / "a.kernel").read_bytes())
    data[at] ^= 1
    (tmp_path / "a.kernel").write_bytes(data)
    assert read_kernel(tmp_path / "a.kernel") is None


@pytest.mark.parametrize("data", [b"", b"{", b"no line", b"{}\n" + b"x" * 40])
def test_a_foreign_file_counts_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.kernel").write_bytes(data)
    assert read_kernel(tmp_path / "a.kernel") is None


@pytest.mark.usefixtures("installed")
def test_a_build_is_compiled_once(tmp_path: Path) -> None:
    compiler = Counting()
    for _ in range(2):
        cache = KernelCache(TABLE, tmp_path, compiler, shipped=None)
        assert cache.get(SCALE_32, ADA).image == CODE.image
    assert compiler.builds == [SCALE_32]


@pytest.mark.usefixtures("installed")
def test_a_damaged_file_is_compiled_again(tmp_path: Path) -> None:
    compiler = Counting()
    cache = KernelCache(TABLE, tmp_path, compiler, shipped=None)
    cache.get(SCALE_32, ADA)
    next(tmp_path.glob("*.kernel")).write_bytes(b"half a")
    assert cache.get(SCALE_32, ADA).image == CODE.image
    assert len(compiler.builds) == 2


@pytest.mark.usefixtures("installed")
def test_a_full_disk_costs_the_next_start_its_time_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = KernelCache(TABLE, tmp_path, Counting(), shipped=None)
    faults.arm("files.write=error:ENOSPC")
    assert cache.get(SCALE_32, ADA).image == CODE.image
    assert f"{tmp_path}" in caplog.text
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_the_key_names_all_that_the_code_depends_on() -> None:
    base = file_name(SCALE, SCALE_32, ADA, "3.7.1")
    others = [
        file_name(SCALE, SCALE_32, ADA, "3.6.0"),
        file_name(SCALE, SCALE_32, Target("cuda", "90", 32), "3.7.1"),
        file_name(SCALE, replace(SCALE_32, num_warps=4), ADA, "3.7.1"),
        file_name(SCALE, replace(SCALE_32, num_stages=3), ADA, "3.7.1"),
        file_name(
            SCALE, replace(SCALE_32, constants=(("BLOCK", 64), ("ADD_ONE", True))), ADA, "3.7.1"
        ),
        file_name(replace(SCALE, arguments=SCALE.arguments[::-1]), SCALE_32, ADA, "3.7.1"),
        file_name(replace(SCALE, function="square"), SCALE_32, ADA, "3.7.1"),
    ]
    assert len({base, *others}) == len(others) + 1
    reordered = replace(SCALE_32, constants=SCALE_32.constants[::-1])
    assert file_name(SCALE, reordered, ADA, "3.7.1") == base
    assert base.startswith("scale_rows.f32-sm_89-")


def test_the_source_hash_follows_imports_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sample_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernel.py").write_text("from sample_package import middle\nimport json\n")
    (package / "middle.py").write_text("from sample_package.helper import f\n")
    (package / "helper.py").write_text("f = 1\n")
    (package / "other.py").write_text("f = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = source_hash("sample_package.kernel")
    (package / "other.py").write_text("f = 2\n")
    assert source_hash("sample_package.kernel") == before
    (package / "helper.py").write_text("f = 2\n")
    assert source_hash("sample_package.kernel") != before


def test_a_shipped_build_needs_no_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: None)
    shipped = tmp_path / "shipped"
    write_kernel(shipped / file_name(SCALE, SCALE_32, ADA, "3.7.1"), CODE)
    (shipped / kernel_cache.VERSION_FILE).write_text("3.7.1\n")
    cache = KernelCache(TABLE, tmp_path / "own", None, shipped)
    assert cache.get(SCALE_32, ADA) == CODE
    with pytest.raises(EngineError, match=r"square\.bf16 .* sm_89, and Triton is not") as caught:
        cache.get(SQUARE_128, ADA)
    assert caught.value.code == "kernel_missing"


def test_an_unknown_constant_is_refused(tmp_path: Path) -> None:
    cache = KernelCache(TABLE, tmp_path, Counting(), shipped=None)
    with pytest.raises(ValueError, match="constants BLOCK given, ADD_ONE, BLOCK needed"):
        cache.get(Build("scale_rows.f32", (("BLOCK", 32),)), ADA)


def test_reading_and_launching_import_neither_torch_nor_triton() -> None:
    code = (
        "import sys, ftengine.gpu.launcher, ftengine.gpu.graph, ftengine.gpu.hand_off, "
        "tests.ftengine.gpu.sample_table; "
        "print([name for name in ('torch', 'triton', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr

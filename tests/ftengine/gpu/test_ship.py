"""The folder of compiled kernels that a release carries."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ftengine.gpu import ship
from ftengine.gpu.kernel_cache import (
    SHIPPED,
    VERSION_FILE,
    KernelCache,
    read_kernel,
    write_kernel,
)
from tests.ftengine.gpu.sample_table import SCALE, SCALE_32, TABLE
from tests.ftengine.gpu.test_kernel_cache import CODE, Counting

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Counting:
    compiler = Counting()
    monkeypatch.setattr(ship, "installed_triton", lambda: "3.9.9")
    monkeypatch.setattr(ship, "compile_kernel", compiler)
    monkeypatch.setattr(ship, "TABLE", replace(TABLE, builds=(SCALE_32,)))
    return compiler


def test_a_release_has_every_build_for_every_target_and_nothing_old(
    tmp_path: Path, compiler: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old-sm_80-0.kernel").write_bytes(b"of another version")
    assert ship.main(["--out", str(tmp_path)]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 1 + len(ship.IN_THE_WHEEL)
    assert [name.split("-")[1] for name in names if name != VERSION_FILE] == sorted(
        ship.IN_THE_WHEEL
    )
    assert "by Triton 3.9.9" in capsys.readouterr().out
    assert len(compiler.builds) == len(ship.IN_THE_WHEEL)
    assert ship.main(["--out", str(tmp_path)]) == 0
    assert len(compiler.builds) == len(ship.IN_THE_WHEEL), "what is there stays"


def test_a_machine_without_triton_runs_what_was_shipped(
    tmp_path: Path, compiler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ship.main(["--out", str(tmp_path), "--targets", "sm_89"]) == 0
    cache = KernelCache(TABLE, tmp_path / "own", None, tmp_path)
    target = next(item for item in ship.TARGETS if item.label == "sm_89")
    assert cache.get(SCALE_32, target).image == CODE.image
    assert [read_kernel(path) is not None for path in tmp_path.glob("*.kernel")] == [True]
    assert SCALE.name == SCALE_32.kernel


def test_without_triton_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(ship, "installed_triton", lambda: None)
    assert ship.main(["--out", str(tmp_path)]) == 1
    assert "pip install triton" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_wheel_that_would_be_too_large_is_refused(
    tmp_path: Path,
    compiler: Counting,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only what goes into the package counts: another folder may hold more targets."""
    monkeypatch.setattr(ship, "MOST_BYTES", 100)
    assert ship.main(["--out", str(tmp_path)]) == 0
    monkeypatch.setattr(ship, "SHIPPED", tmp_path)
    assert ship.main([]) == 1
    assert "ship fewer builds" in capsys.readouterr().err


def test_the_built_wheel_holds_what_was_shipped_where_it_is_looked_for(tmp_path: Path) -> None:
    """A small checkout with a shipped folder, which git ignores, by the real build settings."""
    source = tmp_path / "source"
    for name in ("pyproject.toml", ".gitignore", "README.md", "LICENSE", "ftman/__init__.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    shipped = source / SHIPPED.relative_to(ROOT)
    shipped.mkdir(parents=True)
    shutil.copy(ROOT / "ftengine" / "gpu" / "ship.py", shipped.parent)
    (shipped / VERSION_FILE).write_text("3.9.9\n")
    write_kernel(shipped / "a-sm_89-0.kernel", CODE)
    build = (
        "from scikit_build_core.build import build_wheel as b; b('..', {'wheel.cmake': 'false'})"
    )
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    installed = tmp_path / "site" / SHIPPED.relative_to(ROOT)
    assert (installed / VERSION_FILE).read_text() == "3.9.9\n"
    assert read_kernel(installed / "a-sm_89-0.kernel") == CODE

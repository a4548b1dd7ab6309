"""The wheel holds everything: kernels, registry, modelfiles. Installed elsewhere, run from `/`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.processes import be_calibrated
from tests.fakes.tiny_models import build_tiny_gguf

ROOT = Path(__file__).resolve().parents[2]
with socket.create_server(("127.0.0.1", 0)) as _probe:
    ADDRESS = f"127.0.0.1:{_probe.getsockname()[1]}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    # the fast kernels take minutes to compile, and the checkout's own build has them
    flags = ["-C", f"build-dir={folder / 'build'}", "-C", "cmake.define.FT_PLAIN=ON"]
    flags += ["-C", "cmake.build-type=Debug"]  # a fifth of the time
    done = subprocess.run([*build, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def ft(site: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed `ft` from the root folder."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FT_", "PYTHON"))}
    environment |= {"PYTHONPATH": str(site), "FT_HOME": str(home), "FT_HOST": ADDRESS}
    return subprocess.run(
        [sys.executable, "-m", "ftman", *words],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_it_searches_pulls_and_answers(site: Path, tmp_path: Path) -> None:
    source = build_tiny_gguf("llama", tmp_path / "tiny.gguf")
    be_calibrated({"FT_HOME": str(tmp_path / "home")})  # kernels like these take a minute for it
    try:
        found = ft(site, tmp_path / "home", "search", "smollm2")
        assert found.returncode == 0, found.stderr
        assert "smollm2-moe" in found.stdout
        pulled = ft(site, tmp_path / "home", "pull", str(source))
        assert pulled.returncode == 0, pulled.stderr
        listed = ft(site, tmp_path / "home", "list").stdout.splitlines()
        name = listed[1].split()[0]
        answered = ft(site, tmp_path / "home", "run", name, "hello")
        assert answered.returncode == 0, answered.stderr
        shown = ft(site, tmp_path / "home", "status", "--json").stdout
        assert '"running": true' in shown
    finally:
        ended = ft(site, tmp_path / "home", "shutdown")
    assert ended.returncode == 0, ended.stderr


def test_its_parts_are_all_there(site: Path) -> None:
    assert list((site / "ftengine" / "_native").glob("*ft_native*"))
    entries = sorted(path.stem for path in (ROOT / "registry" / "models").glob("*.toml"))
    packed = site / "ftman" / "_data" / "registry" / "models"
    assert sorted(path.stem for path in packed.glob("*.toml")) == entries
    assert list((site / "ftman" / "_data" / "modelfiles").glob("*.Modelfile"))
    console = {path.name for path in (ROOT / "ftman" / "ui").iterdir()}
    assert {path.name for path in (site / "ftman" / "ui").iterdir()} == console

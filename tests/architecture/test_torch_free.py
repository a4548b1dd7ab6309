"""The manager, and the parts of the engine that plan, never import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.source import ROOT, modules

BLOCKER = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
for name in {names!r}:
    importlib.import_module(name)
"""
HEAVY = ("torch", "triton", "transformers")
TORCH_FREE_ENGINE = (
    "ftengine.protocol",
    "ftengine.errors",
    "ftengine.config",
    "ftengine.log",
    "ftengine.gpu.api",
    "ftengine.gpu.compile_kernel",
    "ftengine.gpu.driver",
    "ftengine.gpu.graph",
    "ftengine.gpu.hand_off",
    "ftengine.gpu.kernel_cache",
    "ftengine.gpu.kernel_table",
    "ftengine.gpu.launcher",
    "ftengine.gpu.memory",
    "ftengine.gpu.stream",
    "ftengine.quant",
    "ftengine.models.spec",
    "ftengine.models.weight_names",
    "ftengine.models.families",
    "ftengine.loader.safetensors_header",
    "ftengine.loader.gguf",
    "ftengine.loader.ftw",
    "ftengine.convert",
    "ftengine.scheduler",
    "ftengine.cache.policy",
    "ftengine.experts.policy",
)


def import_without(blocked: tuple[str, ...], names: list[str]) -> subprocess.CompletedProcess[str]:
    """Import modules in a fresh interpreter in which some packages cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKER.format(blocked=blocked, names=names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_manager_module_imports_without_torch() -> None:
    names = [m.name for m in modules("ftman") if not m.name.endswith("__main__")]
    done = import_without(HEAVY, names)
    assert done.returncode == 0, done.stderr


def test_planning_parts_of_the_engine_import_without_torch() -> None:
    names = [
        m.name
        for m in modules("ftengine")
        if any(m.name == free or m.name.startswith(free + ".") for free in TORCH_FREE_ENGINE)
        and not m.name.endswith("__main__")
    ]
    assert len(names) > 10
    done = import_without(HEAVY, names)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["version"], ["--help"]])
def test_quick_commands_import_nothing_heavy(arguments: list[str]) -> None:
    blocked = (*HEAVY, "pydantic", "fastapi", "starlette", "httpx", "tokenizers", "numpy")
    code = BLOCKER.format(blocked=blocked, names=["ftman.cli.main"]) + (
        f"\nfrom ftman.cli.main import main\nsys.argv = ['ft', *{arguments!r}]\nsys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_blocker_blocks() -> None:
    done = import_without(("json",), ["json"])
    assert done.returncode != 0
    assert "blocked: json" in done.stderr

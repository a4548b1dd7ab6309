"""What the architecture tests need to know of the source: modules, imports, functions."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def where(self) -> str:
        """Path relative to the checkout, for messages."""
        return self.path.relative_to(ROOT).as_posix()


@cache
def modules(package: str) -> tuple[Module, ...]:
    """Every module of a top-level package, sorted by name."""
    gc.disable()  # it would look through ever more of the trees, five times as long as parsing
    try:
        return tuple(_parsed(package))
    finally:
        gc.enable()


def _parsed(package: str) -> Iterator[Module]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if "_data" in path.parts:
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        yield Module(name, path, text, ast.parse(text))


def imports(module: Module, *, top_level_only: bool = False) -> Iterator[tuple[str, int]]:
    """Absolute names of what a module imports, with the line."""
    nodes = module.tree.body if top_level_only else ast.walk(module.tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Dotted text of what is called, with the call."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield _dotted(node.func), node


def _dotted(node: ast.expr) -> str:
    """What ast.unparse says, for names and their attributes in a fraction of the time."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ast.unparse(node)


@cache
def names_of_tests(path: str) -> frozenset[str]:
    """Tests of a file, below the checkout; none for one that is not there or not collected."""
    file = ROOT / path
    if not file.name.startswith("test_") or not file.is_file():
        return frozenset()
    found = (n.name for n in ast.parse(file.read_text("utf-8")).body if isinstance(n, _FUNCTION))
    return frozenset(name for name in found if name.startswith("test_"))


def plain_environment() -> dict[str, str]:
    """For a pytest in a process of its own: without what this one was told."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function, nested ones included."""
    for node in ast.walk(module.tree):
        if isinstance(node, _FUNCTION):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1

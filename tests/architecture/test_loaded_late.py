"""What most engines never need is loaded when it is needed."""

from __future__ import annotations

from tests.architecture.source import imports, modules

LATE = "llguidance"
READERS = "ftengine.constraints."
LIGHT = {"ftengine.constraints.worker"}
"""Of that package, what the engine itself imports at its start."""


def test_llguidance_is_loaded_with_the_first_constraint_only() -> None:
    importers = {
        module.name
        for package in ("ftengine", "ftman")
        for module in modules(package)
        if any(name.split(".")[0] == LATE for name, _ in imports(module, top_level_only=True))
    }
    assert importers
    assert all(name.startswith(READERS) for name in importers)
    assert not importers & LIGHT
    wrong = [
        f"{module.where}:{line} imports {name}"
        for package in ("ftengine", "ftman")
        for module in modules(package)
        if not module.name.startswith(READERS)
        for name, line in imports(module, top_level_only=True)
        if name.startswith(READERS) and not any(name.startswith(light) for light in LIGHT)
    ]
    assert not wrong, "\n".join(wrong)


def test_grammar_work_needs_no_torch() -> None:
    wrong = [
        f"{module.where}:{line} imports {name}"
        for module in modules("ftengine")
        if module.name.startswith("ftengine.constraints")
        for name, line in imports(module)
        if name.split(".")[0] in ("torch", "triton", "transformers", "asyncio")
    ]
    assert not wrong, "\n".join(wrong)

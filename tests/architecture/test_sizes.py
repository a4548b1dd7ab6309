"""Files and functions stay readable in one sitting."""

from __future__ import annotations

from tests.architecture.source import ROOT, functions, modules

FILE_LINES = 600
FUNCTION_LINES = 100
PACKAGES = ("ftman", "ftengine", "tests", "benchmarks")


def test_no_python_file_is_too_long() -> None:
    long = [
        f"{m.where}: {m.text.count(chr(10))} lines"
        for package in PACKAGES
        for m in modules(package)
        if m.text.count("\n") > FILE_LINES
    ]
    assert not long, "\n".join(long)


def test_no_native_file_is_too_long() -> None:
    long = []
    for pattern in ("*.cpp", "*.h"):
        for path in (ROOT / "native").rglob(pattern):
            lines = path.read_text("utf-8").count("\n")
            if lines > FILE_LINES:
                long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not long, "\n".join(long)


def test_no_function_is_too_long() -> None:
    long = [
        f"{m.where}: {name} has {length} lines"
        for package in PACKAGES
        for m in modules(package)
        for name, length in functions(m)
        if length > FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_no_module_is_called_utils() -> None:
    vague = ("utils", "util", "helpers", "misc", "common_utils")
    found = [
        m.where
        for package in ("ftman", "ftengine")
        for m in modules(package)
        if m.path.stem in vague
    ]
    assert not found, "\n".join(found)

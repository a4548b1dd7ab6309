"""One file layer, one clock, one reader of the environment, no dead fault point, pure policy."""

from __future__ import annotations

import ast
import re

from ftman import faults
from tests.architecture.source import ROOT, Module, calls, modules

FILE_OWNERS = {"ftman.files"}
# Reads are free everywhere. These are the calls that change the disk.
FILE_CALLS = re.compile(
    r"^(os\.(open|rename|replace|link|symlink|unlink|remove|rmdir|mkdir|makedirs|fsync|truncate)"
    r"|shutil\.(rmtree|move|copy\w*)|tempfile\.\w+)$"
)
PATH_METHODS = re.compile(
    r"\.(write_text|write_bytes|unlink|rename|rmdir|mkdir|touch|symlink_to|hardlink_to)$"
)
CLOCK_OWNERS = {"ftman.clock"}
CLOCK_CALLS = re.compile(r"^time\.\w+$|^datetime\.(datetime\.)?(now|utcnow|today)$")
ENVIRONMENT = re.compile(r"\bos\.(environ|getenv|environb)\b")
ENVIRONMENT_OWNERS = {"ftman.config", "ftengine.config"}


def guarded_by_file_layer() -> list[Module]:
    """Modules whose writes must go through `ftman.files`."""
    engine = [
        m
        for m in modules("ftengine")
        if m.name.startswith(("ftengine.convert", "ftengine.loader", "ftengine.calibrate"))
    ]
    return [m for m in (*modules("ftman"), *engine) if m.name not in FILE_OWNERS]


def opens_for_writing(name: str, call: ast.Call) -> bool:
    """True for open(..., "w") and path.open("ab") with a constant writing mode."""
    if name != "open" and not name.endswith(".open"):
        return False
    candidates = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
    modes = [c.value for c in candidates if isinstance(c, ast.Constant)]
    return any(
        isinstance(m, str) and re.fullmatch(r"[rwaxbt+]+", m) and set(m) & set("wax+")
        for m in modes
    )


def test_only_the_file_layer_changes_the_disk() -> None:
    wrong = []
    for module in guarded_by_file_layer():
        for name, call in calls(module):
            if (
                FILE_CALLS.match(name)
                or opens_for_writing(name, call)
                or (PATH_METHODS.search(name) and not name.startswith(("files.", "self._files.")))
            ):
                wrong.append(f"{module.where}:{call.lineno} calls {name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_clock_module_asks_for_the_time() -> None:
    wrong = [
        f"{module.where}:{call.lineno} calls {name}"
        for module in modules("ftman")
        if module.name not in CLOCK_OWNERS
        for name, call in calls(module)
        if CLOCK_CALLS.match(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_wait_loses_a_cancellation() -> None:
    """asyncio.wait_for does, before Python 3.12: ftman.waits has what is used instead."""
    wrong = [
        f"{module.where}:{call.lineno} calls {name}"
        for package in ("ftman", "ftengine")
        for module in modules(package)
        for name, call in calls(module)
        if name in ("asyncio.wait_for", "wait_for")
    ]
    assert not wrong, "\n".join(wrong)


def test_only_config_reads_the_environment() -> None:
    wrong = [
        f"{module.where}:{number}"
        for package in ("ftman", "ftengine")
        for module in modules(package)
        if module.name not in ENVIRONMENT_OWNERS
        for number, line in enumerate(module.text.splitlines(), 1)
        if ENVIRONMENT.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_fault_point_is_passed_somewhere_and_every_name_is_known() -> None:
    used: set[str] = set()
    for module in (*modules("ftman"), *modules("ftengine")):
        for name, call in calls(module):
            if name.endswith("faults.hit") or name == "hit":
                used |= {a.value for a in call.args if isinstance(a, ast.Constant)}
    assert used == set(faults.POINTS)


def test_policy_is_pure() -> None:
    wrong = []
    for module in (*modules("ftman"), *modules("ftengine")):
        if "policy" not in module.name and not module.name.startswith("ftengine.scheduler"):
            continue
        for node in ast.walk(module.tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            wrong += [
                f"{module.where}:{node.lineno} imports {name}"
                for name in names
                if name.split(".")[0] in ("torch", "asyncio", "time", "threading", "triton")
            ]
    assert not wrong, "\n".join(wrong)


def test_the_project_speaks_of_itself_alone() -> None:
    words = re.compile(r"/work/|\bhelper session|pypi\.org|registry\.npmjs|deb\.debian", re.I)
    suffixes = {".py", ".md", ".toml", ".h", ".cpp", ".txt", ".json", ".Modelfile"}
    folders = (
        "ftman",
        "ftengine",
        "native",
        "registry",
        "modelfiles",
        "benchmarks",
        "docs",
        "tests",
    )
    own = {"test_single_owners.py"}
    paths = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in suffixes]
    paths += [p for p in ROOT.iterdir() if p.suffix in suffixes or p.name == "Makefile"]
    wrong = [
        f"{path.relative_to(ROOT)}: {match.group()!r}"
        for path in paths
        if path.name not in own
        for match in words.finditer(path.read_text("utf-8", errors="replace"))
    ]
    assert not wrong, "\n".join(wrong)

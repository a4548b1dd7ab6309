"""What a killed process, a failing disk call and a cut write leave behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftman import faults
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import NewModel
from ftman.errors import FtmanError, NotFoundError
from tests.ftman.catalog.samples import (
    broken_invariants,
    catalog_in,
    make_ftw,
    name_of,
    new_model,
    orphans,
)

ROOT = Path(__file__).resolve().parents[3]

CHILD = """
import sys
from pathlib import Path
from ftman import faults
from tests.ftman.catalog.samples import catalog_in, name_of, new_model
home, ftw_id, verb, plan = sys.argv[1:]
catalog = catalog_in(Path(home))
faults.arm(plan)
if verb == "commit":
    catalog.commit(name_of("new"), new_model(ftw_id, system="new system"))
else:
    catalog.delete("old", lambda _: False)
"""


def run_child(home: Path, ftw_id: str, verb: str, plan: str) -> int:
    argv = [sys.executable, "-c", CHILD, str(home), ftw_id, verb, plan]
    return subprocess.run(argv, cwd=ROOT, timeout=30, check=False).returncode


@pytest.fixture
def store(tmp_path: Path) -> Catalog:
    catalog = catalog_in(tmp_path)
    catalog.commit(name_of("old"), new_model(make_ftw(catalog.paths, 1)))
    return catalog


@pytest.mark.parametrize(
    ("plan", "visible"),
    [
        ("files.write:1=kill", False),
        ("files.fsync:3=kill", False),
        ("files.rename:2=kill", False),
        ("catalog.before_commit=kill", False),
        ("catalog.after_commit=kill", True),
    ],
)
def test_kill_during_commit_leaves_old_or_new_state(
    store: Catalog, plan: str, visible: bool
) -> None:
    ftw_id = make_ftw(store.paths, 2)
    assert run_child(store.paths.home, ftw_id, "commit", plan) == -signal.SIGKILL
    after = catalog_in(store.paths.home)
    assert broken_invariants(store.paths) == []
    assert [m.name.model for m in after.models() if m.name.model == "new"] == ["new"] * visible
    assert after.find("old").damaged == ""
    after.commit(name_of("new"), new_model(ftw_id, system="new system"))
    after.sweep([], grace_s=-1e6)
    assert orphans(store.paths) == set()
    assert after.find("new").damaged == ""


def test_kill_after_the_manifest_went_leaves_only_orphans(store: Catalog) -> None:
    assert run_child(store.paths.home, "", "delete", "delete.after_manifest=kill") == -9
    after = catalog_in(store.paths.home)
    assert after.models() == []
    assert broken_invariants(store.paths) == []
    assert after.sweep([], grace_s=-1e6) > 2 * 8192
    assert list(store.paths.ftw.iterdir()) == []
    assert list(store.paths.blobs.iterdir()) == []


def fail_at(nth: int) -> Callable[[str], None]:
    seen = 0

    def listener(point: str) -> None:
        nonlocal seen
        if point.startswith("files."):
            seen += 1
            if seen == nth:
                raise OSError(28, "No space left on device")

    return listener


def fresh(ftw_id: str, nth: int) -> NewModel:
    """A model that shares no text blob with any other."""
    return new_model(
        ftw_id,
        system=f"system {nth}",
        template=f"{nth}",
        licenses=(f"licence {nth}",),
        parameters={"seed": nth},
    )


def test_every_single_failing_disk_call_during_commit_is_clean(store: Catalog) -> None:
    ftw_id = make_ftw(store.paths, 2)
    nth = 0
    while True:
        nth += 1
        faults.listen(fail_at(nth))
        try:
            store.commit(name_of(f"new{nth}"), fresh(ftw_id, nth))
            break
        except OSError:
            faults.listen(None)
            assert broken_invariants(store.paths) == []
            assert store.find("old").damaged == ""
            leftovers = [p.name for p in store.paths.blobs.iterdir() if p.name.startswith(".")]
            assert leftovers == []
    faults.listen(None)
    assert nth > 20
    assert store.find(f"new{nth}").damaged == ""


def test_every_single_failing_disk_call_during_delete_is_clean(tmp_path: Path) -> None:
    nth = 0
    while True:
        nth += 1
        catalog = catalog_in(tmp_path / str(nth))
        catalog.commit(name_of("old"), new_model(make_ftw(catalog.paths, 1)))
        faults.listen(fail_at(nth))
        try:
            catalog.delete("old", lambda _: False)
            failed = False
        except (OSError, FtmanError):
            failed = True
        faults.listen(None)
        assert broken_invariants(catalog.paths) == []
        if not failed:
            with pytest.raises(NotFoundError):
                catalog.find("old")
        if nth > 12:
            break
        catalog.sweep([], grace_s=-1e6)
        if not catalog.models():
            assert list(catalog.paths.blobs.iterdir()) == []
    assert not failed

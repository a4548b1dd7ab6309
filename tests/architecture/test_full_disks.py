"""Everything that writes is tested on a full disk: here stands where, and that it is so."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.architecture.full_disks_seen import BEGIN
from tests.architecture.source import ROOT, modules, names_of_tests, plain_environment

WRITING = {"write_atomic", "create_new", "copy_file", "link_or_copy", "Writer"}
NOT_MEANT = {"ftman.files", "ftengine.gpu.ship", "ftman.pull.registry_check"}
"""The file layer itself, and tools of a release."""
SMALL = "tests/e2e/faults/test_f09_writers.py::test_a_full_disk_is_named_and_nothing_is_lost"
PULLED = "tests/ftman/pull/test_full_disk.py::test_a_full_disk_is_named_and_the_next_try_works"
WINDOWED = "tests/ftman/pull/test_full_disk.py::test_a_window_that_cannot_be_noted_is_fetched_again"
CONVERTED = (
    "tests/ftengine/convert/test_resume.py"
    "::test_every_failing_disk_call_is_a_clean_error_and_can_be_resumed"
)
FULL_DISKS = {
    "ftengine.cache.park_files": "tests/ftengine/cache/test_park_files.py"
    "::test_full_disk_is_told_once_and_leaves_nothing_behind",
    "ftengine.convert.convert": CONVERTED,
    "ftengine.convert.journal": CONVERTED,
    "ftengine.convert.remake": "tests/ftengine/convert/test_remake.py"
    "::test_a_disk_that_is_full_at_any_write_ends_it_and_the_next_try_works",
    "ftengine.convert.repair": "tests/ftengine/convert/test_repair.py"
    "::test_a_disk_that_is_full_mends_nothing_and_the_next_try_does",
    "ftengine.convert.window": CONVERTED,
    "ftengine.convert.writer": CONVERTED,
    "ftengine.gpu.kernel_cache": "tests/ftengine/gpu/test_kernel_cache.py"
    "::test_a_full_disk_costs_the_next_start_its_time_and_nothing_else",
    "ftman.autostart.launchd": SMALL,
    "ftman.autostart.systemd": SMALL,
    "ftman.autostart.windows": SMALL,
    "ftman.calibration": "tests/ftman/test_calibration.py"
    "::test_a_full_disk_costs_no_load_and_no_second_measurement",
    "ftman.catalog.blobs": "tests/ftman/catalog/test_blobs.py"
    "::test_a_full_disk_leaves_no_temporary_file",
    "ftman.catalog.index": "tests/ftman/pull/test_disk_faults.py"
    "::test_one_full_disk_while_committing",
    "ftman.catalog.lock": SMALL,
    "ftman.cli.agent_files": SMALL,
    "ftman.cli.external_editor": SMALL,
    "ftman.cli.line_editor": "tests/e2e/faults/test_f09_writers.py"
    "::test_a_history_that_cannot_be_written_ends_no_session",
    "ftman.doctor.bundle": SMALL,
    "ftman.gateway.serve_process": SMALL,
    "ftman.keys": SMALL,
    "ftman.pull.cost": PULLED,
    "ftman.pull.disk": PULLED,
    "ftman.pull.install": "tests/ftman/pull/test_full_disk.py"
    "::test_a_receipt_that_cannot_be_written_costs_another_try",
    "ftman.pull.journal": WINDOWED,
    "ftman.pull.offline": PULLED,
    "ftman.pull.ollama_registry_sign": SMALL,
    "ftman.pull.pull": WINDOWED,
    "ftman.pull.pypi": PULLED,
    "ftman.pull.remote_index": "tests/ftman/pull/test_full_disk.py"
    "::test_a_web_registry_that_cannot_be_kept_is_told_of",
    "ftman.pull.span": WINDOWED,
    "ftman.pull.wheel": PULLED,
    "ftman.pull.windows": WINDOWED,
    "ftman.supervisor.rundir": SMALL,
}


def test_every_writer_has_a_test_with_a_full_disk() -> None:
    writers = {
        module.name
        for module in (*modules("ftman"), *modules("ftengine"))
        if any(isinstance(n, ast.Attribute) and n.attr in WRITING for n in ast.walk(module.tree))
    }
    assert writers - NOT_MEANT == set(FULL_DISKS)
    for test in FULL_DISKS.values():
        path, _, name = test.partition("::")
        assert name in names_of_tests(path), f"there is no {test}"


@pytest.mark.slow
def test_the_disk_is_full_under_every_writer_in_its_test() -> None:
    plugin = ["-p", "tests.architecture.full_disks_seen", "-p", "no:cacheprovider", "-m", ""]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *sorted(set(FULL_DISKS.values()))]
    done = subprocess.run(
        command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    lines = [line.removeprefix(BEGIN) for line in done.stdout.splitlines() if BEGIN in line]
    seen = {tuple(line.split(" ", 1)) for line in lines}
    assert set(FULL_DISKS.items()) <= seen, set(FULL_DISKS.items()) - seen

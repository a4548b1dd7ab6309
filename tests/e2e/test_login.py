"""Start at login with a real service manager: a systemd user manager in a namespace of its own."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT
from tests.fakes.tiny_models import build_tiny

ALONE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
SYSTEMD = Path("/lib/systemd/systemd")


@functools.cache
def why_not() -> str:
    """What this machine lacks; empty for nothing."""
    if not SYSTEMD.exists() or shutil.which("systemctl") is None:
        return "no systemd is installed"
    if not hasattr(os, "getuid") or os.getuid() != 0:
        return "a namespace with mounts of its own takes root"
    done = subprocess.run([*ALONE, "--mount-proc", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.decode()}"


@pytest.mark.slow
def test_from_enable_to_an_answer_at_the_next_login(tmp_path: Path) -> None:
    if why_not():
        pytest.skip(why_not())
    home = tmp_path / "home"
    home.mkdir()
    model = build_tiny("llama", tmp_path / "tiny-llama")
    done = subprocess.run(
        [*ALONE, "--mount-proc", sys.executable, "-m", "tests.e2e.login_scenario", home, model],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "ft starts at login" in seen["enabled"]
    assert seen["first"]["ActiveState"] == "active"
    assert seen["answers_by_service"]
    assert seen["answer"].strip()
    assert seen["same_manager"]
    assert seen["answer_after_kill"] == seen["answer"]
    assert seen["status"].split()[:2] == ["enabled", "running"]
    assert not seen["after_logout"]
    assert seen["started_at_login"]
    assert seen["answer_at_login"] == seen["answer"]
    assert "no longer starts at login" in seen["disabled"]
    assert not seen["after_disable"]

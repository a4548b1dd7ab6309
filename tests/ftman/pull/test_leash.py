"""A command on the leash ends when whoever holds it is gone, and passes on its own status."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftman.pull.pypi import LEASH

ROOT = Path(__file__).parents[3]
HOLDER = """
import subprocess, sys
leash = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(leash.stdout.readline(), end="", flush=True)
leash.wait()
"""
SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_command_dies_with_a_killed_holder() -> None:
    command = [sys.executable, "-c", HOLDER, *LEASH, sys.executable, "-c", SLEEPER]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    assert is_alive(pid)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    for _ in range(400):
        if not is_alive(pid):
            break
        time.sleep(0.02)
    assert not is_alive(pid)


@pytest.mark.parametrize(("code", "status"), [("pass", 0), ("raise SystemExit(3)", 3)])
def test_the_status_is_passed_on(code: str, status: int) -> None:
    command = [*LEASH, sys.executable, "-c", code]
    leash = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)
    assert leash.wait(20) == status
    assert leash.stdin is not None
    leash.stdin.close()


def test_a_command_that_is_not_there_says_so() -> None:
    done = subprocess.run(
        [*LEASH, "/no/such/program"], stdin=subprocess.PIPE, cwd=ROOT, stderr=-1, check=False
    )
    assert done.returncode == 127
    assert b"cannot be started" in done.stderr

"""The manager's end, while a thread computes for a client who is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENDING = """
import asyncio, sys, time
from ftman import log
from ftman.config import load_config
from ftman.gateway import serve_process

async def run(self, listener):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, float(sys.argv[1]))
    await asyncio.sleep(0)

serve_process.Server.run = run
serve_process.THREADS_S = 0.3
log.configure()
print(serve_process.serve(load_config(), lambda service: None))
"""
ROOT = Path(__file__).resolve().parents[3]


def ended(home: Path, seconds: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "FT_HOME": str(home), "FT_HOST": "127.0.0.1:0", "PYTHONPATH": str(ROOT),
        "PATH": os.environ.get("PATH", ""),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", ENDING, seconds],
        env=environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_a_thread_that_computes_on_is_not_waited_for(tmp_path: Path) -> None:
    done = ended(tmp_path, "60")
    assert done.returncode == 0
    assert "a thread still computes" in done.stderr
    assert not (tmp_path / "run" / "manager.json").exists()


def test_a_thread_that_is_nearly_done_is(tmp_path: Path) -> None:
    done = ended(tmp_path, "0.1")
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert "a thread still computes" not in done.stderr

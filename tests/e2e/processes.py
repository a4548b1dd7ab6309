"""A manager as a real process, for clients that must not share anything with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from ftman.calibration import Calibration
from ftman.config import load_config

ROOT = Path(__file__).resolve().parents[2]
FAKE = (sys.executable, "-m", "tests.e2e.fake_manager")
REAL = (sys.executable, "-m", "ftman", "serve")
RATES = {
    "threads": 2,
    "target": "any",
    "read_bytes_per_s": 1e10,
    "disk_bytes_per_s": 0.0,
    "expert_bytes_per_s": {},
}
"""What was measured, where that does not matter."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of no use here, and slow to make


@dataclass
class ManagerProcess:
    """A running manager."""

    process: subprocess.Popen[bytes]
    url: str
    home: Path

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.home / "stderr.log").read_text()

    def stop(self, number: int = signal.SIGTERM, wait_s: float = 30) -> int:
        """End it; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(wait_s)


@contextlib.contextmanager
def manager_process(
    home: Path, command: tuple[str, ...] = FAKE, **environment: str
) -> Iterator[ManagerProcess]:
    """Start a manager on a free port; ends it at the end, whatever happened."""
    home.mkdir(parents=True, exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FT_", "OLLAMA_", "OPENAI_"))}
    env |= {"FT_HOME": str(home), "FT_HOST": "127.0.0.1:0", "PYTHONPATH": str(ROOT)}
    env["FT_PREPARE_ENGINE"] = "off"  # seconds of work that few tests wait for
    env |= environment
    if command == REAL:
        be_calibrated(env)
    with (home / "stderr.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stderr=log)
    try:
        yield ManagerProcess(process, wait_for(home, process), home)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(25)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def be_calibrated(environment: dict[str, str]) -> None:
    """The first load would measure the machine for seconds; one in test_sdk_ollama.py does."""
    config = load_config(environment)
    path = config.paths.state / "calibration.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({Calibration(config.paths, config.engine).key(): RATES}))


def wait_for(home: Path, process: subprocess.Popen[bytes], limit_s: float = 30) -> str:
    """URL of a manager, once it answers."""
    record = home / "run" / "manager.json"
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            url = "http://" + json.loads(record.read_text())["address"]
            if is_answering(url):
                return url
        time.sleep(0.02)
    raise AssertionError((home / "stderr.log").read_text())


def is_answering(url: str) -> bool:
    """Whether a manager answers there.   Raises: httpx.HTTPError."""
    status = httpx.get(f"{url}/api/ft/status", trust_env=False, verify=_NO_TLS).status_code
    return status == 200

"""The main job, end to end: pull, convert, calibrate, spawn the engine, answer; then tidy up.

`python tests/demo.py FT PROMPT`: FT is the installed `ft`. Uses the default store. A manager that
was already running is used and left running; one that this script started is stopped again.
"""

from __future__ import annotations

import subprocess
import sys
import time

MODEL = "smollm2-moe"


def main(ft: str, prompt: str) -> int:
    """Run the demo; returns the exit status of the answer."""
    was_running = subprocess.run([ft, "status", "--quiet"], check=False).returncode == 0
    started = time.monotonic()
    print(f'$ ft run {MODEL} "{prompt}"', flush=True)  # noqa: T201
    try:
        answer = subprocess.run([ft, "run", MODEL, "--verbose", prompt], check=False)
    finally:
        if not was_running:
            subprocess.run([ft, "shutdown", "--quiet"], check=False)
    if answer.returncode == 0:
        print(f"done in {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201
    return answer.returncode


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tests/demo.py FT PROMPT")
    sys.exit(main(sys.argv[1], sys.argv[2]))

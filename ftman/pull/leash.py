"""A command that ends with its manager: python -m ftman.pull.leash COMMAND...

The manager holds the other end of stdin. When it is gone, however it went, the pipe closes, and the
command is ended here; a program such as pip would else go on downloading for nobody.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from ftman.errors import UsageError

CANNOT_START = 127
STOP_AFTER_S = 2.0


def main(command: Sequence[str]) -> int:
    """Run a command until it or whoever holds our stdin ends; returns its exit status."""
    if not command:
        raise UsageError("leash: no command was given")
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return CANNOT_START
    signal.signal(signal.SIGTERM, lambda *_: _end(child))
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _watch(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_AFTER_S)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A process that has the engine's modules in memory and waits to be told what to serve.

The manager keeps one, so that a model is loaded without the seconds that an interpreter and its
imports take. Told over stdin, by one line; a manager that ends closes it, and the process ends.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ftman import files

ORDER_LIMIT_BYTES = 1 << 20


def wait_for_order(prepare: Callable[[], object]) -> list[str]:
    """Prepare, then return the arguments that stdin brings; stderr goes to the log it names.

    The process ends at once where stdin ends first: nobody will ever need it. Raises: OSError where
    the log cannot be opened.
    """
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(_read_line()), daemon=True)
    reader.start()  # before the preparations, which take seconds in which a manager may end
    prepare()
    reader.join()
    order = json.loads(found[0])
    with files.open_log(Path(order["log"])) as log:
        os.dup2(log.fileno(), 2)
    return [str(word) for word in order["arguments"]]


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data or len(line) > ORDER_LIMIT_BYTES:
            os._exit(0)
        line += data
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line

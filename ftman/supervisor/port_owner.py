"""Which process listens on a port of this machine. Linux only; elsewhere nobody is known."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from ftman import files


def listener_pid(port: int) -> int:
    """Pid of the process that listens on a port, 0 where that cannot be seen."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in files.read_bytes(Path(table)).decode().splitlines()[1:]:
                cells = line.split()
                if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{cells[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        with contextlib.suppress(OSError):
            if str(link.readlink()) in inodes:
                return int(link.parts[2])
    return 0


def process_name(pid: int) -> str:
    """What a process calls itself; "" when it cannot be read."""
    if not pid:
        return ""
    try:
        name = files.read_bytes(Path(f"/proc/{pid}/comm")).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return re.sub(r"[^\w.+-]", "?", name)

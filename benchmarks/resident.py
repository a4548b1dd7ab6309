"""What this process holds in memory, as Linux counts it. Standard library only: peers use it."""

from __future__ import annotations

from pathlib import Path

_LINES = {"VmRSS": "all", "RssAnon": "own", "RssFile": "files", "VmHWM": "peak"}


def resident_bytes() -> dict[str, int]:
    """all = own + mapped files that are in memory; peak = the most it ever was. Units: bytes."""
    found = {}
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name in _LINES:
            found[_LINES[name]] = int(value.split()[0]) * 1024
    return found

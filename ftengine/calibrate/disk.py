"""How fast the model's own files come from the disk, past the page cache where that is allowed."""

from __future__ import annotations

import os
from pathlib import Path

from ftman.clock import Clock
from ftman.files import open_read

SAMPLE_BYTES = 256 << 20
CHUNK_BYTES = 8 << 20


def measure_disk(folder: Path, clock: Clock) -> float:
    """Read up to 256 MiB of the largest weight file. Units: bytes per second; 0 without a file."""
    shards = sorted(folder.glob("weights-*.ftw"), key=lambda path: path.stat().st_size)
    if not shards:
        return 0.0
    with open_read(shards[-1]) as reader:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(reader.fileno(), 0, SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)
        started = clock.monotonic()
        total = 0
        while total < SAMPLE_BYTES and (chunk := reader.read(CHUNK_BYTES)):
            total += len(chunk)
        return total / max(clock.monotonic() - started, 1e-9)

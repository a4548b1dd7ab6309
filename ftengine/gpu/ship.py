"""Compiles the builds of a table ahead, into a folder that a release or a bare machine carries."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from ftengine.gpu.driver import Target
from ftengine.gpu.kernel_cache import VERSION_FILE, Compiler, file_name, read_kernel, write_kernel
from ftengine.gpu.kernel_table import KernelTable
from ftman import files

log = logging.getLogger(__name__)

TARGETS = (
    *(Target("cuda", arch, 32) for arch in ("80", "86", "89", "90", "120")),
    Target("hip", "gfx1100", 32),
    Target("hip", "gfx942", 64),
)
"""What a release is compiled for."""


def ship(
    table: KernelTable, targets: Iterable[Target], folder: Path, compiler: Compiler, triton: str
) -> int:
    """Compile what is not there yet. Returns the bytes of all files. Takes a second per build.

    triton: the version that the compiler is; the folder holds files of one version only.
    """
    files.write_atomic(folder / VERSION_FILE, f"{triton}\n".encode())
    wanted: set[str] = set()
    for target in targets:
        for build in table.builds:
            kernel = table.kernel(build.kernel)
            name = file_name(kernel, build, target, triton)
            wanted.add(name)
            if read_kernel(folder / name) is None:
                write_kernel(folder / name, compiler(kernel, build, target))
        log.info("compiled %d GPU kernels for %s", len(table.builds), target.label)
    for path in folder.glob("*.kernel"):
        if path.name not in wanted:
            files.unlink(path)
    return sum(path.stat().st_size for path in folder.iterdir())

"""Compiles the builds of a table ahead, into a folder that a release or a bare machine carries.

python -m ftengine.gpu.ship                     # NVIDIA targets, into this package: the wheel's
python -m ftengine.gpu.ship --targets gfx942 --out folder
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ftengine.gpu.compile_kernel import compile_kernel
from ftengine.gpu.driver import Target
from ftengine.gpu.kernel_cache import (
    SHIPPED,
    VERSION_FILE,
    Compiler,
    file_name,
    installed_triton,
    read_kernel,
    write_kernel,
)
from ftengine.gpu.kernel_table import KernelTable
from ftengine.kernels.triton.builds import TABLE
from ftman import files

log = logging.getLogger(__name__)

TARGETS = (
    *(Target("cuda", arch, 32) for arch in ("80", "86", "89", "90", "120")),
    Target("hip", "gfx1100", 32),
    Target("hip", "gfx942", 64),
)
"""What kernels are checked for."""
IN_THE_WHEEL = tuple(target.label for target in TARGETS if target.backend == "cuda")
"""What a wheel carries. AMD's are compiled where they are used."""
MOST_BYTES = 10_000_000
"""Of all files in a wheel."""


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile for a release. Returns the exit status."""
    known = {target.label: target for target in TARGETS}
    parser = argparse.ArgumentParser(prog="python -m ftengine.gpu.ship", description=__doc__)
    parser.add_argument("--out", type=Path, default=SHIPPED, help="default: this package")
    parser.add_argument("--targets", nargs="+", choices=known, default=IN_THE_WHEEL)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    version = installed_triton()
    if version is None:
        sys.stderr.write("Triton is not installed; pip install triton\n")
        return 1
    targets = [known[label] for label in given.targets]
    size = ship(TABLE, targets, given.out, compile_kernel, version)
    sys.stdout.write(f"{size / 1e6:.1f} MB in {given.out}, by Triton {version}\n")
    if given.out == SHIPPED and size > MOST_BYTES:
        sys.stderr.write(f"a wheel carries at most {MOST_BYTES / 1e6:.0f} MB: ship fewer builds\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the GPU path does on a real GPU: parity, rates, decode, prefill, resizes, kills. In-process.

    python -m benchmarks.gpu_check --pack gpu_check.tar.gz --targets sm_90   # here, needs no GPU
    tar xzf gpu_check.tar.gz && python3 -m benchmarks.gpu_check --out gpu_check.json   # there

The machine with the GPU needs Python 3.12, torch and the driver, no package index, no compiler: the
native library, the compiled kernels and two small libraries travel along. The result file is
written anew after every section; sections stand in order of value, and those that would begin after
6.5 minutes are skipped by name. The sections are in gpu_sections.py and gpu_engine.py. Not yet run
on a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import PACKED_COMMIT, ROOT, commit

LIMIT_S = 390.0
MOST_PACK_BYTES = 64 << 20
_CARRIED = ("ftengine", "ftman", "benchmarks", "tests/__init__.py", "tests/fakes")
_LIBRARIES = ("platformdirs", "xxhash")
_PYTHON, _PLATFORM = "3.12", "manylinux2014_x86_64"
"""Of the machine with the GPU."""
_NATIVE = ("libft_native.so", "libft_native.dylib")

Section = Callable[[], Mapping[str, Any]]


@dataclass
class Report:
    """The result file: one object, rewritten whole after every change."""

    path: Path
    content: dict[str, Any]

    def put(self, section: str, result: Mapping[str, Any]) -> None:
        """Add or replace a section."""
        self.content["sections"][section] = dict(result)
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(self.content, indent=1) + "\n")
        temporary.replace(self.path)


def run_sections(
    sections: Mapping[str, Section],
    report: Report,
    limit_s: float = LIMIT_S,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Run them in order; a failed one does not end the rest. Whether all ran and none failed."""
    begun, good = now(), True
    for name, section in sections.items():
        started = now()
        if started - begun > limit_s:
            report.put(name, {"status": "skipped", "why": f"{limit_s:g} s were gone"})
            good = False
            continue
        report.put(name, {"status": "running"})
        try:
            result = {"status": "ok", **section()}
        except Exception as error:  # the root of a section: what it died of is its result
            trace = traceback.format_exc(limit=6)
            result = {
                "status": "failed",
                "error": f"{type(error).__name__}: {error}",
                "trace": trace,
            }
            good = False
        report.put(name, {**result, "seconds": round(now() - started, 2)})
        print(f"{name}: {result['status']}", flush=True)
    return good


def pack(path: Path, labels: list[str]) -> int:
    """Everything a bare machine needs in one archive. Returns its bytes.

    Raises: SystemExit when a part is missing or the archive is larger than 64 MiB.
    """
    from ftengine.gpu.compile_kernel import compile_kernel
    from ftengine.gpu.kernel_cache import installed_triton
    from ftengine.gpu.ship import TARGETS, ship
    from ftengine.kernels.triton.builds import TABLE

    triton = installed_triton()
    if triton is None:
        raise SystemExit("packing compiles the kernels: pip install triton")
    targets = [target for target in TARGETS if target.label in labels]
    if len(targets) != len(labels):
        known = ", ".join(target.label for target in TARGETS)
        raise SystemExit(f"unknown target in {', '.join(labels)}; known: {known}")
    native = next((p for n in _NATIVE if (p := ROOT / "build" / "native" / n).is_file()), None)
    if native is None:
        raise SystemExit("the native library is not built: make native")
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder)
        ship(TABLE, targets, compiled, compile_kernel, triton)
        with tarfile.open(path, "w:gz") as archive:
            for name in _CARRIED:
                archive.add(ROOT / name, name, filter=_carried)
            archive.add(native, f"ftengine/_native/{native.name}")
            archive.add(compiled, "ftengine/gpu/compiled")
            for item in _libraries(compiled / "libraries"):
                archive.add(item, item.name)
            (compiled / PACKED_COMMIT.name).write_text(commit())
            archive.add(compiled / PACKED_COMMIT.name, PACKED_COMMIT.name)
    size = path.stat().st_size
    if size > MOST_PACK_BYTES:
        raise SystemExit(
            f"{path} has {size} bytes, at most {MOST_PACK_BYTES} travel; fewer targets"
        )
    return size


def _libraries(folder: Path) -> list[Path]:
    """What the engine needs beside torch, unpacked, for the machine with the GPU."""
    target = ("--python-version", _PYTHON, "--platform", _PLATFORM, "--only-binary", ":all:")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *target]
    subprocess.run([*command, "--target", str(folder), *_LIBRARIES], check=True)
    return [folder / name for name in _LIBRARIES]


def _carried(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("__pycache__", "/_native", "/gpu/compiled", "benchmarks/results", "benchmarks/data")
    return None if any(part in item.name for part in left_out) else item


def main() -> int:
    """Pack, or run every section on this machine's GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", type=Path, help="write the archive for a bare machine and end")
    parser.add_argument("--targets", default="sm_90", help="of the archive, by commas")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--only", default="", help="sections by commas; all when empty")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds")
    options = parser.parse_args()
    if options.pack:
        print(f"{options.pack}: {pack(options.pack, options.targets.split(','))} bytes")
        return 0
    from benchmarks.gpu_sections import Check
    from ftengine.errors import EngineError

    try:
        check = Check.open()
    except EngineError as error:
        raise SystemExit(error.message) from None
    wanted = options.only.split(",") if options.only else list(check.sections)
    machine = {**check.described, "python": platform.python_version(), "cpu": platform.machine()}
    content = {"name": "gpu_check", "machine": machine, "commit": commit(), "sections": {}}
    report = Report(options.out, content)
    good = run_sections({name: check.sections[name] for name in wanted}, report, options.limit)
    check.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

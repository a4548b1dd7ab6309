"""Wheels through pip: the exact file, by hash, into the job's folder. Other kinds are not built."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ftman import files
from ftman.clock import Clock
from ftman.convert.job import child_environment
from ftman.errors import IntegrityError, NetworkError, UnsupportedError, UsageError
from ftman.names import printable
from ftman.pull.source import WheelMember
from ftman.pull.threads import in_thread
from ftman.pull.wheel import check_member_name
from ftman.waits import end_child

WATCH_EVERY_S = 0.25
REQUIREMENTS = "requirements.txt"
_TAIL_BYTES = 1 << 16
PIP = (sys.executable, "-m", "pip")
LEASH = (sys.executable, "-m", "ftman.pull.leash")
STOP_AFTER_S = 5.0
_SOURCE = re.compile(r"pypi://([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)/(.+)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def parse_pypi(source: str, wheel_sha256: str, wheel_bytes: int = 0) -> WheelMember:
    """Read `pypi://package==version/path/in/wheel`.   Raises: UsageError."""
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise UsageError(f"{printable(source)!r} is not pypi://package==version/path/in/wheel")
    if not _DIGEST.fullmatch(wheel_sha256):
        raise UsageError(f"{printable(source)!r} comes without the wheel's sha256")
    package, version, member = match.groups()
    return WheelMember(package, version, check_member_name(member), wheel_sha256, wheel_bytes)


async def fetch_wheel(
    wheel: WheelMember,
    folder: Path,
    clock: Clock,
    on_size: Callable[[int], None],
    pip: Sequence[str] = PIP,
) -> Path:
    """Download the wheel into `folder` and verify it; `on_size` is told how large it is so far.

    pip does not resume: after an interruption it starts this one file again.
    Raises: UnsupportedError without pip, NetworkError with pip's last line, IntegrityError.
    """
    kept = await in_thread(_find_wheel, folder, wheel.wheel_sha256)
    if kept is not None:
        on_size(kept.stat().st_size)
        return kept
    if tuple(pip) == PIP and importlib.util.find_spec("pip") is None:
        raise UnsupportedError(
            f"this Python ({sys.executable}) has no pip to fetch {wheel.package} with",
            hint=f"Elsewhere: python3 -m pip download --no-deps {wheel.package}=={wheel.version}"
            " -d FOLDER; then here: ft pull FOLDER",
            code="no_pip",
        )
    await in_thread(files.remove_tree, folder)
    scratch = files.make_dir(folder / "scratch")
    requirements = folder / REQUIREMENTS
    files.write_atomic(requirements, wheel.requirement.encode() + b"\n")
    await _run_pip((*pip, *_arguments(folder, requirements)), scratch, folder, clock, on_size)
    await in_thread(files.remove_tree, scratch)
    found = await in_thread(_find_wheel, folder, wheel.wheel_sha256)
    if found is None:
        raise IntegrityError(f"pip did not bring the wheel of {wheel.package} with its digest")
    on_size(found.stat().st_size)
    return found


def _arguments(folder: Path, requirements: Path) -> tuple[str, ...]:
    return (
        "download",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--no-input",
        "--no-cache-dir",
        "--progress-bar=off",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        "--requirement",
        str(requirements),
    )


async def _run_pip(
    command: Sequence[str],
    scratch: Path,
    folder: Path,
    clock: Clock,
    on_size: Callable[[int], None],
) -> None:
    environment = child_environment()
    environment |= {"TMPDIR": str(scratch), "PIP_CONSTRAINT": "", "PIP_NO_COLOR": "1"}
    # pip knows nothing of us: the leash ends it when this process is gone, even by SIGKILL.
    process = await asyncio.create_subprocess_exec(
        *LEASH,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    watching = asyncio.ensure_future(_watch(folder, clock, on_size))
    try:
        tail = await _last_lines(process)
        status = await process.wait()
    finally:
        watching.cancel()
        assert process.stdin is not None
        process.stdin.close()  # the leash, which ends pip
        await end_child(process, STOP_AFTER_S)
        await asyncio.gather(watching, return_exceptions=True)
    if status != 0:
        raise NetworkError(
            f"pip cannot fetch the file: {tail or f'it ended with status {status}'}",
            hint="Check the network and pip's own settings (pip config list), then try again.",
        )


async def _last_lines(process: asyncio.subprocess.Process) -> str:
    stderr = process.stderr
    assert stderr is not None
    tail = b""
    while chunk := await stderr.read(1 << 16):
        tail = (tail + chunk)[-_TAIL_BYTES:]
    lines = [line.strip() for line in tail.decode(errors="replace").splitlines()]
    errors = [line for line in lines if line.startswith("ERROR")]
    chosen = errors[-1] if errors else next((line for line in reversed(lines) if line), "")
    return printable(chosen.removeprefix("ERROR:").strip()[:400])


async def _watch(folder: Path, clock: Clock, on_size: Callable[[int], None]) -> None:
    while True:
        await clock.sleep(WATCH_EVERY_S)
        # pip renames and deletes under our eyes; the next look will be right again.
        with contextlib.suppress(OSError):
            found = [item for item in files.walk(folder) if item.name != REQUIREMENTS]
            on_size(max((item.stat().st_size for item in found), default=0))


def _find_wheel(folder: Path, sha256: str) -> Path | None:
    for path in sorted(folder.glob("*.whl")):
        if files.sha256_file(path) == sha256:
            return path
    return None

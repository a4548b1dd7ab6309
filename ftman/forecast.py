"""Asks the engine's forecast about an installed model; the numbers are the engine's, never ours.

What is forecast stands in `ftengine.forecast`; here lives the child process, and this machine put
into the words of a device profile.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftman.catalog.catalog import Catalog
from ftman.config import engine_environment
from ftman.errors import FtmanError, UsageError
from ftman.supervisor import hardware

COMMAND = (sys.executable, "-m", "ftengine.forecast")
TIMEOUT_S = 30.0
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
DEFAULT_CONTEXT_TOKENS = 32768


async def ask(
    ftw: Path,
    machine: str | Mapping[str, Any],
    context_tokens: int,
    command: Sequence[str] = COMMAND,
) -> Mapping[str, Any]:
    """One forecast. machine: a packaged profile's name, or values as `this_machine` gives them.

    Raises: UsageError with the engine's words, FtmanError when the child fails.
    """
    arguments = [*command, "--ftw", str(ftw), "--context", str(context_tokens)]
    if isinstance(machine, str):
        arguments += ["--device", machine]
    else:
        arguments += ["--machine", json.dumps(dict(machine))]
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=engine_environment(),
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        value = json.loads(output)
    except asyncio.TimeoutError:
        raise FtmanError(f"the forecast gave no answer in {TIMEOUT_S:.0f} s") from None
    except ValueError:
        raise FtmanError(
            f"the forecast ended with status {process.returncode} before its answer",
            hint="Run it by hand to see why: python -m ftengine.forecast --list",
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if "error" in value:
        raise UsageError(str(value["error"]["message"]))
    answer: Mapping[str, Any] = value["forecast"]
    return answer


def this_machine(profile: Mapping[str, Any], ram_bytes: int) -> dict[str, Any]:
    """The CPU of this machine as a profile, from its calibration. It has no link of its own."""
    rate = min(profile["expert_bytes_per_s"].values(), default=profile["read_bytes_per_s"])
    values = {
        "name": "this machine",
        "title": f"{profile['threads']} threads, {profile['target']}",
        "vram_bytes": 0,
        "ram_bytes": ram_bytes,
        "device_bytes_per_s": rate,
        "device_flops_per_s": rate,
        "link_bytes_per_s": rate,
        "host_bytes_per_s": rate,
        "host_left_bytes_per_s": 0,
    }
    if profile.get("disk_bytes_per_s"):
        values["disk_bytes_per_s"] = profile["disk_bytes_per_s"]
    return values


async def forecast_of(
    catalog: Catalog,
    profile: Mapping[str, Any] | None,
    name: str,
    device: str,
    context_tokens: int | None,
) -> Mapping[str, Any]:
    """A forecast for an installed model. device "" is this machine, by its calibration.

    Raises: NotFoundError; UsageError where this machine has not been measured.
    """
    ftw = catalog.find(name).ftw_path
    context = DEFAULT_CONTEXT_TOKENS if context_tokens is None else context_tokens
    if context < 1:
        raise UsageError(f"context must be 1 or more, got {context}")
    if device:
        # Over HTTP only names are taken: a path would have this process read files for a client.
        if not _NAME.fullmatch(device):
            raise UsageError(f"device {device!r} is not the name of a profile")
        return await ask(ftw, device, context)
    if profile is None:
        raise UsageError(
            "this machine has not been measured yet: run `ft calibrate` first, or name a machine "
            "with --device"
        )
    return await ask(ftw, this_machine(profile, hardware.memory().total_bytes), context)

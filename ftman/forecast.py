"""Asks the engine's forecast about a model; the numbers are the engine's, never ours.

What is forecast stands in `ftengine.forecast`; here lives the child process, and this machine put
into the words of a device profile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftman.child_answer import answer_of
from ftman.config import engine_environment
from ftman.errors import UsageError
from ftman.supervisor import hardware

COMMAND = (sys.executable, "-m", "ftengine.forecast")
TIMEOUT_S = 30.0
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_UNMEASURED_BYTES_PER_S = 1.0
"""Stands for a rate nobody has measured: memory does not depend on it, and times are left out."""
_TIMES = ("tokens_per_s", "ttft_s", "strategy")


async def ask(
    model: Path | Mapping[str, Any],
    machine: str | Mapping[str, Any],
    context_tokens: int | None,
    command: Sequence[str] = COMMAND,
) -> Mapping[str, Any]:
    """One forecast. model: an FTW folder, or a converter's plan; context None = the usual one.

    machine: a packaged profile's name, or values as `this_machine` gives them.
    Raises: UsageError with the engine's words, FtmanError when the child fails.
    """
    plan = None if isinstance(model, Path) else json.dumps(dict(model)).encode()
    arguments = [*command, *(("--shape", "-") if plan is not None else ("--ftw", str(model)))]
    if context_tokens is not None:
        arguments += ["--context", str(context_tokens)]
    if isinstance(machine, str):
        arguments += ["--device", machine]
    else:
        arguments += ["--machine", json.dumps(dict(machine))]
    by_hand = "python -m ftengine.forecast --list"
    value = await answer_of(arguments, "forecast", TIMEOUT_S, by_hand, plan)
    if "error" in value:
        raise UsageError(str(value["error"]["message"]))
    answer: Mapping[str, Any] = value["forecast"]
    return answer


def this_machine(profile: Mapping[str, Any] | None, ram_bytes: int) -> dict[str, Any]:
    """The CPU of this machine as a profile, from its calibration. It has no link of its own.

    profile None: not measured yet; then only what the forecast says of memory means something.
    """
    values = {
        "name": "this machine",
        "title": "not measured yet",
        "vram_bytes": 0,
        "ram_bytes": ram_bytes,
        "host_left_bytes_per_s": 0,
    }
    rate = _UNMEASURED_BYTES_PER_S
    if profile is not None:
        rate = min(profile["expert_bytes_per_s"].values(), default=profile["read_bytes_per_s"])
        values["title"] = f"{profile['threads']} threads, {profile['target']}"
        if profile.get("disk_bytes_per_s"):
            values["disk_bytes_per_s"] = profile["disk_bytes_per_s"]
    rated = ("device_bytes_per_s", "device_flops_per_s", "link_bytes_per_s", "host_bytes_per_s")
    return values | dict.fromkeys(rated, rate)


async def forecast_of(
    model: Path | Mapping[str, Any],
    profile: Mapping[str, Any] | None,
    device: str,
    context_tokens: int | None,
) -> Mapping[str, Any]:
    """A forecast; device "" is this machine, by its calibration.

    Raises: UsageError where this machine has not been measured.
    """
    check_question(device, context_tokens)
    if device:
        return await ask(model, device, context_tokens)
    if profile is None:
        raise UsageError(
            "this machine has not been measured yet: run `ft calibrate` first, or name a machine "
            "with --device"
        )
    ram_bytes = hardware.memory().total_bytes
    return await ask(model, this_machine(profile, ram_bytes), context_tokens)


async def memory_here(
    plan: Mapping[str, Any], profile: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """What a model would do on this machine; without times where it has not been measured."""
    ram_bytes = hardware.memory().total_bytes
    answer = dict(await ask(plan, this_machine(profile, ram_bytes), None))
    answer["machine_ram_bytes"] = ram_bytes
    for key in _TIMES if profile is None else ():
        answer.pop(key, None)
    return answer


def check_question(device: str, context_tokens: int | None) -> None:
    """Refuse what no model could be forecast for, before anything is read or fetched.

    Raises: UsageError.
    """
    if context_tokens is not None and context_tokens < 1:
        raise UsageError(f"context must be 1 or more, got {context_tokens}")
    # Over HTTP only names are taken: a path would have this process read files for a client.
    if device and not _NAME.fullmatch(device):
        raise UsageError(f"device {device!r} is not the name of a profile")


def check_device(device: str, command: Sequence[str] = COMMAND) -> None:
    """Refuse a profile that the engine has not. Takes a child process: some tenths of a second.

    Raises: UsageError naming those it has.
    """
    try:
        done = subprocess.run(
            [*command, "--list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=engine_environment(),
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return  # as below
    names = done.stdout.split()
    if done.returncode == 0 and device not in names:  # else the forecast itself says what is wrong
        raise UsageError(
            f"there is no device profile {device!r}",
            hint=f"There are: {', '.join(names)}",
            code="unknown_device",
        )

"""Machines as data: the profiles packaged beside this file, read into frozen values. No torch.

A profile holds rates that somebody measured, each with its source; what a model costs on a machine
is ftengine/forecast.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ftengine.errors import LoadError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILE_FOLDER = "profiles"
_TEXT = {"name", "title"}
_COUNTS = {"vram_bytes", "ram_bytes"}
_MAY_BE_ZERO = {
    "vram_bytes",
    "host_left_bytes_per_s",
    "link_latency_s",
    "copy_latency_s",
    "cpu_latency_s",
    "launch_s",
}


@dataclass(frozen=True)
class Machine:
    """One machine. Units: bytes, bytes per second, floating point operations per second, seconds.

    host_left_bytes_per_s is what the CPU expert kernel reaches while the link is saturated.
    link_latency_s falls due once per batch of copies, copy_latency_s per copy, cpu_latency_s per
    call of the CPU branch (hand-over and return), launch_s per device operation.
    """

    name: str
    title: str
    vram_bytes: int
    ram_bytes: int
    device_bytes_per_s: float
    device_flops_per_s: float
    link_bytes_per_s: float
    host_bytes_per_s: float
    host_left_bytes_per_s: float
    disk_bytes_per_s: float = 3.5e9
    link_latency_s: float = 10e-6
    copy_latency_s: float = 1e-6
    cpu_latency_s: float = 15e-6
    launch_s: float = 3e-6


def profile_names() -> tuple[str, ...]:
    """Names of the packaged profiles."""
    folder = resources.files("ftengine.device") / PROFILE_FOLDER
    return tuple(sorted(i.name[:-5] for i in folder.iterdir() if i.name.endswith(".toml")))


def read_machine(name: str) -> Machine:
    """A packaged profile by name, or a profile file by path.

    Raises: LoadError naming the profile and what is wrong with it.
    """
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise LoadError(f"device profile {name} does not exist")
        return parse_machine(path.read_text("utf-8"), name)
    if name not in profile_names():
        raise LoadError(
            f"device profile {name!r} is unknown; packaged: {', '.join(profile_names())}; "
            "or give the path of a .toml file"
        )
    entry = resources.files("ftengine.device") / PROFILE_FOLDER / f"{name}.toml"
    return parse_machine(entry.read_text("utf-8"), name)


def parse_machine(text: str, where: str) -> Machine:
    """Raises: LoadError naming the profile and the key."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LoadError(f"device profile {where} is not TOML: {error}") from None
    values.pop("sources", None)
    return machine_of(values, where)


def machine_of(values: Mapping[str, Any], where: str) -> Machine:
    """A machine of plain values.

    Raises: LoadError naming the profile and the key.
    """
    known = {field.name: field for field in fields(Machine)}
    for key in values:
        if key not in known:
            raise LoadError(f"device profile {where} has an unknown key {key!r}")
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            raise LoadError(f"device profile {where} lacks {key!r}")
    return Machine(**{key: _checked(key, value, where) for key, value in values.items()})


def _checked(key: str, value: Any, where: str) -> Any:
    if key in _TEXT:
        good = isinstance(value, str)
    else:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        good = good and (value > 0 or key in _MAY_BE_ZERO)
    if not good:
        raise LoadError(f"device profile {where}: {key} = {value!r} makes no sense")
    return int(value) if key in _COUNTS else value

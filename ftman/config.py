"""Settings of the manager: the only reader of environment variables and of the config file.

Every setting is a key of `config.toml` and an environment variable FT_<KEY>; the environment wins.
A bad value is an error that names the key.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from ftman import faults
from ftman.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PORT = 11434
FOREVER_S = -1.0
DEFAULT_KEEP_ALIVE_S = 300.0
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Paths:
    """Where everything lies. `home` is the root; `models` may be set apart from it."""

    home: Path
    models: Path

    @property
    def blobs(self) -> Path:
        return self.models / "blobs"

    @property
    def manifests(self) -> Path:
        return self.models / "manifests"

    @property
    def ftw(self) -> Path:
        return self.models / "ftw"

    @property
    def partial(self) -> Path:
        return self.models / "partial"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def cache(self) -> Path:
        return self.home / "cache"


@dataclass(frozen=True)
class EngineSettings:
    """How engines are started. Units: context in tokens, 0 = the model's default; seconds.

    strategy "" = the device's own; expert_slots 0 = as many as fit; tier: host experts in memory or
    on disk. prefix_cache: engines reuse what they have computed. prefill_share: part of the time
    that prompts get while replies are being written, 0 = the engine's own.
    """

    device: str = "auto"
    strategy: str = ""
    expert_slots: int = 0
    tier: str = "auto"
    prefix_cache: bool = True
    prefill_share: float = 0.0
    compute: str = "bfloat16"
    threads: int = 0
    cpu_target: str = ""
    num_parallel: int = 4
    context_length: int = 0
    load_timeout_s: float = 300.0
    adopt: bool = True


@dataclass(frozen=True)
class Config:
    """All settings of one manager, checked.

    Units: keep_alive_s seconds, negative = forever; reserve_bytes is disk never to be used.
    """

    paths: Paths
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    keep_alive_s: float = DEFAULT_KEEP_ALIVE_S
    max_queue: int = 512
    max_loaded_models: int = 0
    origins: tuple[str, ...] = ()
    registry: tuple[str, ...] = ()
    reserve_bytes: int = 1 << 30
    debug: bool = False
    engine: EngineSettings = EngineSettings()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise _bad("host", str(self.port), "a port between 0 and 65535")
        if self.max_queue < 1:
            raise _bad("max_queue", str(self.max_queue), "1 or more")

    @property
    def address(self) -> str:
        """host:port as a person types it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Base URL for clients on this machine; a wildcard bind is reached by loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        return f"http://{host}:{self.port}"


def load_config(environ: Mapping[str, str] | None = None) -> Config:
    """Read config.toml, then the environment.   Raises: UsageError naming the key and its rule."""
    env = os.environ if environ is None else environ
    home = _home(env)
    values = _read_file(home / "config.toml", env)
    for key in _KEYS:
        text = env.get(f"FT_{key.upper()}")
        if text is not None and text != "":
            values[key] = text
    parsed = {key: _KEYS[key](key, str(value)) for key, value in values.items()}
    try:
        faults.arm(env.get("FT_FAULTS", ""))
    except ValueError as error:
        raise _bad("faults", env["FT_FAULTS"], f"a plan of known points ({error})") from None
    host, port = parsed.get("host", ("127.0.0.1", DEFAULT_PORT))
    engine_keys = EngineSettings.__dataclass_fields__.keys() & parsed.keys()
    if "keep_alive" in parsed:
        parsed["keep_alive_s"] = parsed.pop("keep_alive")
    own_keys = Config.__dataclass_fields__.keys() & parsed.keys() - {"host"}
    models = parsed.get("models", home / "models")
    return Config(
        paths=Paths(home, models),
        host=host,
        port=port,
        engine=EngineSettings(**{key: parsed[key] for key in engine_keys}),
        **{key: parsed[key] for key in own_keys},
    )


def engine_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for child processes: ours, without FT_FAULTS meant for the manager."""
    env = dict(os.environ if environ is None else environ)
    env.pop("FT_FAULTS", None)
    child = env.pop("FT_CHILD_FAULTS", "")
    if child:
        env["FT_FAULTS"] = child
    return env


def parse_duration(text: str) -> float:
    """Parse a Go duration ("5m", "1h30m", "-1s", "0") into seconds. Raises: ValueError."""
    rest, sign = text.strip(), 1.0
    if rest[:1] in ("-", "+"):
        sign, rest = (-1.0 if rest[0] == "-" else 1.0), rest[1:]
    if rest == "0":
        return 0.0
    total, seen = 0.0, False
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        number, rest = rest[:digits], rest[digits:]
        letters = next((i for i, ch in enumerate(rest) if ch.isdigit() or ch == "."), len(rest))
        unit, rest = rest[:letters], rest[letters:]
        if not number or number == "." or number.count(".") > 1:
            raise ValueError(f'time: invalid duration "{text}"')
        if not unit:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if unit not in _UNITS_S:
            raise ValueError(f'time: unknown unit "{unit}" in duration "{text}"')
        total, seen = total + float(number) * _UNITS_S[unit], True
    if not seen:
        raise ValueError(f'time: invalid duration "{text}"')
    return sign * total


def _home(env: Mapping[str, str]) -> Path:
    text = env.get("FT_HOME", "")
    if text:
        return Path(text).expanduser().absolute()
    return Path(platformdirs.user_data_dir("ft", appauthor=False))


def _read_file(path: Path, env: Mapping[str, str]) -> dict[str, Any]:
    named = env.get("FT_CONFIG", "")
    path = Path(named) if named else path
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if named:
            raise UsageError(f"FT_CONFIG names {path}, which does not exist") from None
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    for key in values:
        if key not in _KEYS:
            known = ", ".join(sorted(_KEYS))
            raise UsageError(f"{path}: unknown setting {key!r}", hint=f"Known settings: {known}.")
    return {key: ",".join(v) if isinstance(v, list) else v for key, v in values.items()}


def _bad(key: str, value: str, rule: str) -> UsageError:
    return UsageError(
        f"setting {key} = {value!r} is not valid: it must be {rule}",
        hint=f"Change FT_{key.upper()} or {key} in config.toml.",
        code="bad_setting",
    )


def _int(key: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise _bad(key, value, "a whole number") from None
    if number < 0:
        raise _bad(key, value, "0 or more")
    return number


def _share(key: str, value: str) -> float:
    try:
        part = float(value)
    except ValueError:
        part = math.nan
    if not 0 <= part <= 1:
        raise _bad(key, value, "a part of 1, such as 0.25, or 0 for the engine's own")
    return part


def _bool(key: str, value: str) -> bool:
    lowered = value.strip().lower()
    if lowered in ("1", "t", "true", "yes", "on"):
        return True
    if lowered in ("0", "f", "false", "no", "off"):
        return False
    raise _bad(key, value, "true or false")


def _duration(key: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parse_duration(value)
        except ValueError:
            seconds = math.nan
    if not math.isfinite(seconds):
        raise _bad(key, value, "seconds, or a duration such as 5m or 1h30m")
    return seconds


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def check(key: str, value: str) -> str:
        if value not in allowed:
            raise _bad(key, value, "one of " + ", ".join(allowed))
        return value

    return check


def _list(key: str, value: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in value.split(",") if item.strip())


def _path(key: str, value: str) -> Path:
    return Path(value).expanduser().absolute()


def _address(key: str, value: str) -> tuple[str, int]:
    text = value.strip().removeprefix("http://").rstrip("/")
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if port and not port.isdigit():
        raise _bad(key, value, "HOST, HOST:PORT or :PORT")
    return host or "127.0.0.1", int(port) if port else DEFAULT_PORT


_KEYS: dict[str, Callable[[str, str], Any]] = {
    "host": _address,
    "models": _path,
    "keep_alive": _duration,
    "max_queue": _int,
    "max_loaded_models": _int,
    "origins": _list,
    "registry": _list,
    "reserve_bytes": _int,
    "debug": _bool,
    "device": _choice("auto", "cpu", "emulated", "cuda", "hip", "xpu"),
    "strategy": _choice("", "resident", "fetch", "cpu", "split", "auto"),
    "expert_slots": _int,
    "tier": _choice("auto", "memory", "disk"),
    "prefix_cache": _bool,
    "prefill_share": _share,
    "compute": _choice("bfloat16", "float32"),
    "threads": _int,
    "cpu_target": lambda key, value: value,
    "num_parallel": _int,
    "context_length": _int,
    "load_timeout_s": _duration,
    "adopt": _bool,
}

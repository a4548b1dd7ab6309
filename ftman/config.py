"""Settings of the manager: the only reader of environment variables and of the config file.

Every setting is a key of `config.toml` and an environment variable FT_<KEY>; the environment wins.
A bad value is an error that names the key. Where neither says anything, some variables of Ollama
count (`OLLAMA_HOST` and its like): people have them set. What cannot be read there is left out with
a note, as Ollama does.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
FALL_BACKS = {
    "host": "OLLAMA_HOST",
    "keep_alive": "OLLAMA_KEEP_ALIVE",
    "origins": "OLLAMA_ORIGINS",
    "context_length": "OLLAMA_CONTEXT_LENGTH",
    "num_parallel": "OLLAMA_NUM_PARALLEL",
    "max_queue": "OLLAMA_MAX_QUEUE",
    "max_loaded_models": "OLLAMA_MAX_LOADED_MODELS",
    "nohistory": "OLLAMA_NOHISTORY",
    "kv_cache_type": "OLLAMA_KV_CACHE_TYPE",
}
"""Variables of Ollama that count where neither FT_<KEY> nor the file says anything."""
KV_CACHE_TYPES = ("auto", "bf16", "f16", "f32", "q8_0")
SECRET_KEYS = frozenset(("api_key",))
_OTHER_VARIABLES = ("FT_HOME", "FT_CONFIG", "FT_EDITOR", "FT_FAULTS", "FT_CHILD_FAULTS")
MAX_PARALLEL = 1024
MAX_THREADS = 1024
"""As engines have it."""
_MAX_INT = 10**18
_MAX_DURATION_S = 9e9
"""Ollama's too: 2^63 nanoseconds."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_SCHEME_PORTS = {"http": 80, "https": 443}
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Paths:
    """Where everything lies. `home` is the root; `models` may be set apart from it.

    parked: conversations of models that are not loaded, below a folder for each; None = nowhere.
    """

    home: Path
    models: Path
    parked: Path | None = None

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
    def sources(self) -> Path:
        return self.models / "sources"

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
    that prompts get while replies are being written, 0 = the engine's own. park_bytes: memory for
    conversations that the prefix cache gives up, None = a share of what is free, 0 = none;
    park_disk: a folder for them when memory is full and when the model is unloaded, None = none,
    park_disk_bytes at most for each model, 0 = the engine's own limit. kv_cache_type: how keys and
    values are kept, auto = as numbers are computed. activations: in products with quantised weights
    on the CPU, auto = as compute says, int8 = rounded to 8 bits, faster and less exact.
    prepare_engine: auto = while memory is ample, a process that has loaded everything but a model
    waits for the next one, off = every engine starts from nothing.
    """

    device: str = "cpu"
    strategy: str = ""
    expert_slots: int = 0
    tier: str = "auto"
    prefix_cache: bool = True
    prefill_share: float = 0.0
    park_bytes: int | None = None
    park_disk: Path | None = None
    park_disk_bytes: int = 0
    kv_cache_type: str = "auto"
    compute: str = "bfloat16"
    activations: str = "auto"
    threads: int = 0
    cpu_target: str = ""
    num_parallel: int = 4
    context_length: int = 0
    load_timeout_s: float = 300.0
    adopt: bool = True
    prepare_engine: str = "auto"

    def __post_init__(self) -> None:
        if self.park_disk is not None and (not self.prefix_cache or self.park_bytes == 0):
            rule = "left out where prefix_cache is off or park_bytes is 0: nothing is parked then"
            raise _bad("park_disk", str(self.park_disk), rule)
        if self.park_disk_bytes and self.park_disk is None:
            raise _bad("park_disk_bytes", str(self.park_disk_bytes), "set together with park_disk")
        if self.activations == "int8" and self.compute == "float32":
            raise _bad("activations", "int8", "auto where compute is float32")
        if self.device == "cpu" and self.strategy not in ("", "cpu"):
            rule = "cpu where device is cpu: it has no memory of its own to bring experts to"
            raise _bad("strategy", self.strategy, rule)
        if self.expert_slots and "cpu" in (self.device, self.strategy):
            rule = "left out where device or strategy is cpu: no expert is kept on a device then"
            raise _bad("expert_slots", str(self.expert_slots), rule)


@dataclass(frozen=True)
class Config:
    """All settings of one manager, checked.

    Units: keep_alive_s seconds, negative = forever; reserve_bytes is disk never to be used. hosts:
    further names under which it may be asked. api_key: what the command line shows to a manager
    elsewhere. said_by: where each setting that is not the default comes from. notes: what of the
    environment was left out.
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
    hosts: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    nohistory: bool = False
    scheme: str = "http"
    engine: EngineSettings = EngineSettings()
    said_by: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise _bad("host", str(self.port), "a port between 0 and 65535")
        if self.max_queue < 1:
            raise _bad("max_queue", str(self.max_queue), "1 or more")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError(
                "tls_cert and tls_key belong together: one of them is not set",
                hint="Set both FT_TLS_CERT and FT_TLS_KEY, or neither.",
                code="bad_setting",
            )

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
        scheme = "https" if self.tls_cert is not None else self.scheme
        return f"{scheme}://{host}:{self.port}"


def load_config(environ: Mapping[str, str] | None = None) -> Config:
    """Read config.toml, then the environment.   Raises: UsageError naming the key and its rule."""
    env = os.environ if environ is None else environ
    home = _home(env)
    values = _read_file(config_file(env), env)
    said_by = dict.fromkeys(values, str(config_file(env)))
    for key in _KEYS:
        text = env.get(f"FT_{key.upper()}")
        if text is not None and text != "":
            values[key], said_by[key] = text, f"FT_{key.upper()}"
    parsed = {key: _KEYS[key](key, str(value)) for key, value in values.items()}
    notes = _fall_back(env, parsed, said_by) + _known_kv(parsed, said_by) + _misspelt(env)
    try:
        faults.arm(env.get("FT_FAULTS", ""))
    except ValueError as error:
        raise _bad("faults", env["FT_FAULTS"], f"a plan of known points ({error})") from None
    scheme, host, port = parsed.get("host", ("http", "127.0.0.1", DEFAULT_PORT))
    engine_keys = EngineSettings.__dataclass_fields__.keys() & parsed.keys()
    if "keep_alive" in parsed:
        parsed["keep_alive_s"] = parsed.pop("keep_alive")
    own_keys = Config.__dataclass_fields__.keys() & parsed.keys() - {"host"}
    models = parsed.get("models", home / "models")
    return Config(
        paths=Paths(home, models, parsed.get("park_disk")),
        host=host,
        port=port,
        scheme=scheme,
        engine=EngineSettings(**{key: parsed[key] for key in engine_keys}),
        said_by=said_by,
        notes=tuple(notes),
        **{key: parsed[key] for key in own_keys},
    )


def settings_of(config: Config) -> dict[str, tuple[Any, str]]:
    """Every setting by its key: the value in force, and what says so ("default" for none).

    Secrets are told as "set".
    """
    found: dict[str, tuple[Any, str]] = {}
    for key in _KEYS:
        value: Any
        if key == "host":
            value = config.address
        elif key == "models":
            value = str(config.paths.models)
        elif key in SECRET_KEYS:
            value = "set" if getattr(config, key) else ""
        else:
            owner = config.engine if hasattr(config.engine, key) else config
            value = getattr(owner, "keep_alive_s" if key == "keep_alive" else key)
        if isinstance(value, tuple | Path):
            value = list(value) if isinstance(value, tuple) else str(value)
        found[key] = (value, config.said_by.get(key, "default"))
    return found


def variables() -> tuple[str, ...]:
    """The environment variable of every setting, but for secrets."""
    return tuple(f"FT_{key.upper()}" for key in _KEYS if key not in SECRET_KEYS)


def config_file(environ: Mapping[str, str] | None = None) -> Path:
    """The settings file that counts, whether it exists or not."""
    env = os.environ if environ is None else environ
    named = env.get("FT_CONFIG", "")
    return _whole(named, "FT_CONFIG") if named else _home(env) / "config.toml"


def _fall_back(
    env: Mapping[str, str], parsed: dict[str, Any], said_by: dict[str, str]
) -> list[str]:
    """Take over Ollama's variables where ft's own say nothing; returns what could not be read."""
    notes = []
    for key, name in FALL_BACKS.items():
        text = env.get(name, "").strip().strip("\"'").strip()
        # 0 means "your own choice" there, which is what our default is.
        if not text or key in parsed or (text == "0" and key not in ("keep_alive", "host")):
            continue
        try:
            parsed[key] = _KEYS[key](key, text)
        except UsageError as error:
            rule = error.message.partition("it must be ")[2]
            notes.append(f"{name}={text[:60]!r} is left out: it must be {rule}")
        else:
            said_by[key] = name
    return notes


def _known_kv(parsed: dict[str, Any], said_by: Mapping[str, str]) -> list[str]:
    """Ollama's f16 becomes the format of that size that there is; says so."""
    if parsed.get("kv_cache_type") != "f16":
        return []
    parsed["kv_cache_type"] = "bf16"
    who = said_by["kv_cache_type"]
    return [f"{who}=f16: keys and values are kept as bf16, which takes the same memory"]


def _misspelt(env: Mapping[str, str]) -> list[str]:
    """Variables that are no setting, but nearly one: whoever set them believes in them."""
    known = {*(f"FT_{key.upper()}" for key in _KEYS), *_OTHER_VARIABLES}
    unknown = sorted(name for name in env if name.startswith("FT_") and name not in known)
    near = {name: difflib.get_close_matches(name, known, 1, cutoff=0.85) for name in unknown}
    return [
        f"{name} is no setting; did you mean {found[0]}?" for name, found in near.items() if found
    ]


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
        return _whole(text, "FT_HOME")
    return Path(platformdirs.user_data_dir("ft", appauthor=False))


def _whole(text: str, what: str) -> Path:
    """A place that is the same for a manager and its commands, wherever each is started.

    Raises: UsageError.
    """
    with contextlib.suppress(RuntimeError):  # ~name of a user that there is not
        path = Path(text).expanduser()
        if path.is_absolute() and "\0" not in text:
            return path
    raise UsageError(
        f"{what} = {text!r} is not valid: it must be a whole path",
        hint=f"A manager starts in a folder of its own. Perhaps: {Path(text).absolute()}",
        code="bad_setting",
    )


def _read_file(path: Path, env: Mapping[str, str]) -> dict[str, Any]:
    named = env.get("FT_CONFIG", "")
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # the latter: see folders.py
        if named:
            raise UsageError(f"FT_CONFIG names {path}, which does not exist") from None
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    for key in values:
        if key not in _KEYS:
            known = ", ".join(sorted(_KEYS))
            raise UsageError(f"{path}: unknown setting {key!r}", hint=f"Known settings: {known}.")
    return {key: ",".join(map(str, v)) if isinstance(v, list) else v for key, v in values.items()}


def _bad(key: str, value: str, rule: str) -> UsageError:
    return UsageError(
        f"setting {key} = {value!r} is not valid: it must be {rule}",
        hint=f"Change FT_{key.upper()} or {key} in config.toml.",
        code="bad_setting",
    )


def _int(key: str, value: str) -> int:
    return _between(0, _MAX_INT)(key, value)


def _between(least: int, most: int) -> Callable[[str, str], int]:
    def check(key: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise _bad(key, value, "a whole number") from None
        if number < least:
            raise _bad(key, value, f"{least} or more")
        if number > most:
            raise _bad(key, value, f"at most {most}")
        return number

    return check


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
    if abs(seconds) > _MAX_DURATION_S:
        raise _bad(key, value, "less than 285 years; negative means for ever")
    return seconds


def _time_limit(key: str, value: str) -> float:
    seconds = _duration(key, value)
    if seconds <= 0:
        raise _bad(key, value, "more than 0 seconds")
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
    with contextlib.suppress(RuntimeError):  # ~name of a user that there is not
        path = Path(value).expanduser().absolute()
        if "\0" not in value:
            return path
    raise _bad(key, value, "the path of a file")


def _places(key: str, value: str) -> tuple[str, ...]:
    """Folders and web addresses; what is behind an address is asked later."""
    places = []
    for place in _list(key, value):
        if "://" not in place:
            places.append(str(_folder(key, place)))
            continue
        with contextlib.suppress(ValueError):
            if urlsplit(place).hostname and urlsplit(place).scheme in ("http", "https"):
                places.append(place)
                continue
        raise _bad(key, place, "folders and https:// addresses, by commas")
    return tuple(places)


def _secret(key: str, value: str) -> str:
    if not value.isascii() or not value.isprintable() or value != value.strip():
        raise _bad(key, "...", "printable ASCII without blanks around it")
    return value


def _word(key: str, value: str) -> str:
    if not _LABEL.fullmatch(value):
        raise _bad(key, value[:60], "one word")
    return value


def _folder(key: str, value: str) -> Path:
    return _whole(value, f"setting {key}")


def _address(key: str, value: str) -> tuple[str, str, int]:
    scheme, separator, rest = value.strip().partition("://")
    text, otherwise = value.strip(), DEFAULT_PORT
    if separator:
        if scheme not in _SCHEME_PORTS:
            raise _bad(key, value, "HOST, HOST:PORT or :PORT, perhaps after http:// or https://")
        text, otherwise = rest.partition("/")[0], _SCHEME_PORTS[scheme]
    else:
        scheme, text = "http", text.rstrip("/")
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        port = port.removeprefix(":") if closed else "?"
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if (port and not (port.isdecimal() and port.isascii())) or (host and not is_host(host)):
        raise _bad(key, value[:100], "HOST, HOST:PORT or :PORT")
    return scheme, host or "127.0.0.1", int(port[:6]) if port else otherwise


def is_host(text: str) -> bool:
    """Whether a text can be the name or address of a machine."""
    if ":" in text:
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(text))
        return False
    try:
        name = text if text.isascii() else text.encode("idna").decode()
    except UnicodeError:
        return False
    labels = name.removesuffix(".").split(".")
    return len(name) < 254 and all(_LABEL.fullmatch(label) for label in labels)


_KEYS: dict[str, Callable[[str, str], Any]] = {
    "host": _address,
    "models": _folder,
    "keep_alive": _duration,
    "max_queue": _int,
    "max_loaded_models": _int,
    "origins": _list,
    "registry": _places,
    "reserve_bytes": _int,
    "debug": _bool,
    "hosts": _list,
    "api_key": _secret,
    "tls_cert": _path,
    "tls_key": _path,
    "nohistory": _bool,
    "device": _choice("auto", "cpu", "gpu", "cuda", "hip", "emulated"),
    "strategy": _choice("", "resident", "fetch", "cpu", "split", "auto"),
    "expert_slots": _int,
    "tier": _choice("auto", "memory", "disk"),
    "prefix_cache": _bool,
    "prefill_share": _share,
    "park_bytes": _int,
    "park_disk": _folder,
    "park_disk_bytes": _int,
    "kv_cache_type": _choice(*KV_CACHE_TYPES),
    "compute": _choice("bfloat16", "float32"),
    "activations": _choice("auto", "int8"),
    "threads": _between(0, MAX_THREADS),
    "cpu_target": _word,
    "num_parallel": _between(1, MAX_PARALLEL),
    "context_length": _int,
    "load_timeout_s": _time_limit,
    "adopt": _bool,
    "prepare_engine": _choice("auto", "off"),
}

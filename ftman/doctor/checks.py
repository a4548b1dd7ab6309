"""One finding for each thing a person asks about when something is wrong. Facts in, sentences out.

What a manager says of itself is handed in; everything else is read from this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftman import files
from ftman.calibration import Calibration
from ftman.catalog.catalog import Catalog
from ftman.config import FALL_BACKS, Config, config_file
from ftman.errors import FtmanError
from ftman.folders import another_instead, named_folders, trouble_with
from ftman.keys import keys_path, read_keys
from ftman.supervisor import hardware
from ftman.supervisor.port_owner import listener_pid, process_name

OK, NOTE, PROBLEM = "ok", "note", "problem"
_SLOW_DISKS = ("9p", "drvfs", "nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "vboxsf")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY")
_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_LOW_OPEN_FILES = 1024


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. state "problem": something does not work. hints: what to do."""

    name: str
    state: str
    text: str
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patient:
    """What is looked at. status: what the running manager says of itself; {} when none runs.

    differing: settings that shell and manager do not agree on, as sentences.
    """

    config: Config
    environ: Mapping[str, str]
    status: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    differing: tuple[str, ...] = ()
    autostart: str = ""
    root: Path = hardware.ROOT


def examine(patient: Patient) -> list[Finding]:
    """Every finding, in the order they are printed. May take seconds: a driver is asked."""
    gpus = hardware.gpus(patient.root)
    found = [_machine(patient), _gpu(patient, gpus), _store(patient), _models(patient)]
    found += [_server(patient), _port(patient), _access(patient), _settings(patient)]
    found += [_calibration(patient), _network(patient), _limits(patient)]
    return found


def _machine(patient: Patient) -> Finding:
    cpu, memory = hardware.cpu(patient.root), hardware.memory(patient.root)
    total, free = _gb(memory.total_bytes), _gb(memory.available_bytes)
    flags = " ".join(flag for flag in cpu.flags if flag.startswith(("avx", "amx", "asimd", "sve")))
    cores = f"{cpu.cores} core{'s' if cpu.cores != 1 else ''}"
    text = f"{cpu.model}, {cores}, {flags or 'no vector features seen'}, {total} RAM ({free} free)"
    if _is_wsl(patient.root):
        hint = "WSL gives half of the RAM; more: memory= in %UserProfile%\\.wslconfig"
        return Finding("machine", NOTE, f"{text}, in WSL", (hint,))
    return Finding("machine", OK, text)


def _gpu(patient: Patient, gpus: hardware.Gpus) -> Finding:
    device = patient.config.engine.device
    said_by = patient.config.said_by.get("device", "default")
    if not gpus.seen:
        if device in ("auto", "cpu", "emulated"):
            return Finding("gpu", OK, f"{gpus.note}; models run on the CPU")
        hint = "Unset it, or: FT_DEVICE=cpu"
        return Finding("gpu", PROBLEM, f"device={device} ({said_by}), but {gpus.note}", (hint,))
    names = ", ".join(
        f"{gpu.name}{f' {_gb(gpu.memory_bytes)}' if gpu.memory_bytes else ''}"
        f"{f' driver {gpu.driver}' if gpu.driver else ''}"
        for gpu in gpus.seen
    )
    if "not usable" in gpus.note:
        hint = "After a driver update a reboot helps; try: nvidia-smi"
        return Finding("gpu", PROBLEM, f"{names}: {gpus.note}", (hint,))
    why = {
        "cpu": f"device=cpu says so ({said_by})",
        "emulated": f"device=emulated is for tests ({said_by})",
    }.get(device)
    if device == "auto":
        text = f"{names}; device=auto uses it where the installed torch was built for it"
        return Finding("gpu", OK, text, ("Which it is: ft show MODEL --engine",))
    if why is None:
        return Finding("gpu", OK, f"{names}; used: device={device} ({said_by})")
    hint = "To try it, before it has been proven on hardware: FT_DEVICE=gpu"
    return Finding("gpu", NOTE, f"{names}, not used: {why}", (hint,))


def _store(patient: Patient) -> Finding:
    paths = patient.config.paths
    free = files.free_bytes(paths.models)
    kind = _disk_kind(paths.models, patient.root)
    text = f"{paths.models}   {_gb(free)} free" + (f", {kind}" if kind else "")
    for name, folder in named_folders(patient.config).items():
        reason = trouble_with(folder, leave_it=False)
        if reason:
            told = f"{folder} cannot be used: {reason}"
            return Finding("store", PROBLEM, told, (another_instead(name),))
    if not paths.models.exists():
        return Finding("store", OK, f"{text}, nothing there yet")
    if free < patient.config.reserve_bytes:
        hint = "Free some: ft gc --explain, ft df, ft rm MODEL"
        return Finding("store", PROBLEM, f"{text}, less than must stay free", (hint,))
    if kind in _SLOW_DISKS:
        hint = "Put the models on a disk of this system: FT_MODELS=~/models"
        return Finding("store", NOTE, f"{text}, which loads slowly", (hint,))
    return Finding("store", OK, text)


def _models(patient: Patient) -> Finding:
    paths = patient.config.paths
    models = Catalog(paths, lambda _: None).models()
    damaged = [model for model in models if model.damaged]
    text = f"{len(models)} installed, {_gb(sum(model.size_bytes for model in models))}"
    if damaged:
        named = "; ".join(f"{model.name.short}: {model.damaged}" for model in damaged)
        hints = tuple(f"ft verify {model.name.short} --repair" for model in damaged)
        return Finding("models", PROBLEM, f"{text}, damaged: {named}", hints)
    return Finding("models", OK, text)


def _server(patient: Patient) -> Finding:
    status = patient.status
    if not status:
        text = "no manager runs; the next command starts one"
        return Finding("server", OK, f"{text}. {patient.autostart}".strip())
    text = f"version {status.get('version')} at {patient.url}, process {status.get('pid')}"
    if status.get("prepared_pid"):
        text += f"; engine prepared, process {status['prepared_pid']} (prepare_engine = off: none)"
    return Finding("server", OK, f"{text}. {patient.autostart}".strip())


def _port(patient: Patient) -> Finding:
    config = patient.config
    if not config.port:
        return Finding("port", OK, "0: each start takes a free one")
    pid = listener_pid(config.port)
    name = process_name(pid)
    if patient.url == config.url or (pid and pid == patient.status.get("pid")):
        return Finding("port", OK, f"{config.port}: our manager")
    if not pid:
        return Finding("port", OK, f"{config.port}: nobody that can be seen")
    where = f"our manager is at {patient.url}" if patient.url else "ft takes the next free one"
    text = f"{config.port} belongs to {name or 'another program'} (pid {pid}); {where}"
    return Finding("port", NOTE, text, ("Give ft one of its own: FT_HOST=127.0.0.1:11435",))


def _access(patient: Patient) -> Finding:
    config = patient.config
    try:
        keys = read_keys(keys_path(config.paths))
    except FtmanError as error:
        return Finding("access", PROBLEM, error.message, (error.hint,))
    tls = "https" if config.tls_cert is not None else "http"
    asked = f"{len(keys)} API keys" if keys else "no API key is asked for"
    if config.host in ("127.0.0.1", "::1", "localhost"):
        return Finding("access", OK, f"this machine only, {tls}, {asked}")
    text = f"reachable from other machines at {config.address}, {tls}, {asked}"
    hints: tuple[str, ...] = (
        () if keys else ("ft serve refuses that without a key: ft key create NAME",)
    )
    if tls == "http":
        hints += ("Keys travel in the clear: set FT_TLS_CERT and FT_TLS_KEY",)
    return Finding("access", NOTE, text, hints)


def _settings(patient: Patient) -> Finding:
    config = patient.config
    said = [f"{key} ({origin})" for key, origin in sorted(config.said_by.items())]
    file = config_file(patient.environ)
    text = f"set: {', '.join(said)}" if said else "all at their defaults"
    text += "" if file.exists() else f"; no file {file}"
    hidden = [
        f"{FALL_BACKS[key]} is set but {origin} says otherwise"
        for key, origin in config.said_by.items()
        if key in FALL_BACKS and patient.environ.get(FALL_BACKS[key])
        if origin != FALL_BACKS[key]
    ]
    trouble = (*config.notes, *patient.differing)
    state = NOTE if trouble else OK
    return Finding("settings", state, text, (*trouble, *hidden))


def _calibration(patient: Patient) -> Finding:
    profile = Calibration(patient.config.paths, patient.config.engine).cached()
    if profile is None:
        return Finding("calibrated", OK, "not yet; the first load does it, or: ft calibrate")
    rates = profile.get("expert_bytes_per_s") or {}
    shown = [f"{value / 1e9:.0f} GB/s {name}" for name, value in rates.items()]
    read = f"memory {profile.get('read_bytes_per_s', 0) / 1e9:.0f} GB/s"
    return Finding(
        "calibrated", OK, ", ".join([read, *(["experts " + ", ".join(shown)] if shown else [])])
    )


def _network(patient: Patient) -> Finding:
    environ = patient.environ
    proxies = [
        name for name in (*_PROXIES, *(name.lower() for name in _PROXIES)) if environ.get(name)
    ]
    authorities = [f"{name}={environ[name]}" for name in _AUTHORITIES if environ.get(name)]
    missing = [text for text in authorities if not Path(text.partition("=")[2]).exists()]
    parts = [f"proxy by {', '.join(proxies)}" if proxies else "no proxy"]
    parts += authorities
    if missing:
        hint = f"{missing[0]} does not exist, so no source can be believed"
        return Finding("network", PROBLEM, ", ".join(parts), (hint,))
    return Finding("network", OK, ", ".join(parts))


def _limits(patient: Patient) -> Finding:
    try:
        import resource  # not on Windows
    except ImportError:
        return Finding("limits", OK, "not told on this system")
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    many = open_files == resource.RLIM_INFINITY
    text = f"open files {'unlimited' if many else open_files}, locked memory " + (
        "unlimited" if locked == resource.RLIM_INFINITY else _gb(locked)
    )
    if not many and open_files < _LOW_OPEN_FILES:
        hint = f"Many clients at once need more: ulimit -n {4 * _LOW_OPEN_FILES}"
        return Finding("limits", NOTE, text, (hint,))
    return Finding("limits", OK, text)


def _disk_kind(path: Path, root: Path) -> str:
    """File system type of the longest mount point above `path`; "" where it is not told."""
    try:
        text = files.read_bytes(root / "proc/mounts").decode("utf-8", "replace")
    except OSError:
        return ""
    rows = [line.split() for line in text.splitlines()]
    mounts = {cells[1].replace("\\040", " "): cells[2] for cells in rows if len(cells) > 2}
    above = [str(path), *(str(parent) for parent in path.parents)]
    return next((mounts[point] for point in above if point in mounts), "")


def _is_wsl(root: Path) -> bool:
    try:
        return b"microsoft" in files.read_bytes(root / "proc/version").lower()
    except OSError:
        return False


def _gb(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"

"""Settings of one engine process: frozen, checked; the command line is read only here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from ftengine.errors import EngineError, RequestError

DEVICES = ("auto", "cpu", "gpu", "cuda", "hip", "emulated")
"""auto: the GPU where there is one, else the CPU. gpu: whichever kind is there."""
STRATEGIES = ("resident", "fetch", "cpu", "split", "auto")
TIERS = ("auto", "memory", "disk")
KV_FORMATS = ("auto", "bf16", "f32", "q8_0")
COMPUTE = ("bfloat16", "float32")
ACTIVATIONS = ("auto", "int8")
KERNELS = ("native", "reference")
DRAIN_S = 20.0
ORPHAN_S = 5.0
ORPHAN_ADOPT_S = 30.0
PREFILL_SHARE = 0.17
PARK_DISK_BYTES = 8 << 30
PARK_S = 12.0
"""An engine that ends may take so long to write what it has parked."""


@dataclass(frozen=True)
class MemoryConfig:
    """Units: bytes; expert_slots counts whole experts.

    kv_bytes 0 = context_tokens * num_parallel tokens. expert_slots and expert_bytes are two ways to
    size the device's expert cache, 0 = what is left. device_bytes: most of a GPU's memory that is
    taken, 0 = what is free; memory of the emulated device, 0 = half of what is free. tier: where
    host experts lie, see ExpertTier in runtime/tiers.py. checkpoint_bytes: for states of recurrent
    layers that the prefix cache keeps, 0 = automatic. kv_format: how keys and values are kept,
    auto = as numbers are computed. park_bytes: of host memory for what the prefix cache gives up,
    None = automatic; park_dir: what leaves that, and all of it when the engine ends, goes to files
    there, park_disk_bytes at most, 0 = PARK_DISK_BYTES.
    """

    kv_bytes: int = 0
    expert_slots: int = 0
    expert_bytes: int = 0
    device_bytes: int = 0
    tier: str = "auto"
    checkpoint_bytes: int = 0
    kv_format: str = "auto"
    park_bytes: int | None = None
    park_dir: Path | None = None
    park_disk_bytes: int = 0

    def __post_init__(self) -> None:
        _check(self.kv_bytes >= 0, "--kv-bytes", self.kv_bytes, "0 (automatic) or more")
        _check(
            self.expert_slots >= 0, "--expert-slots", self.expert_slots, "0 (all that fit) or more"
        )
        _check(
            self.expert_bytes >= 0, "--expert-bytes", self.expert_bytes, "0 (all that fit) or more"
        )
        _check(self.device_bytes >= 0, "--device-bytes", self.device_bytes, "0 (automatic) or more")
        _check(
            self.checkpoint_bytes >= 0,
            "--checkpoint-bytes",
            self.checkpoint_bytes,
            "0 (automatic) or more",
        )
        _check(self.tier in TIERS, "--tier", self.tier, "one of " + ", ".join(TIERS))
        rule = "one of " + ", ".join(KV_FORMATS)
        _check(self.kv_format in KV_FORMATS, "--kv-format", self.kv_format, rule)
        for name, value in (
            ("--park-bytes", self.park_bytes or 0),
            ("--park-disk-bytes", self.park_disk_bytes),
        ):
            _check(value >= 0, name, value, "0 or more")
        if self.park_dir is not None and self.park_bytes == 0:
            rule = "left out with --park-bytes 0: files are written from memory"
            raise _bad("--park-dir", self.park_dir, rule)
        if self.park_disk_bytes and self.park_dir is None:
            raise _bad("--park-disk-bytes", self.park_disk_bytes, "given with --park-dir")
        if self.expert_slots and self.expert_bytes:
            raise _bad(
                "--expert-bytes", self.expert_bytes, "left out where --expert-slots is given"
            )


@dataclass(frozen=True)
class ComputeConfig:
    """Where and how numbers are computed. threads 0 = one per core the process may use.

    strategy: who computes experts that are not on the device; empty = the device's own default.
    activations: in products with quantised weights on the CPU: auto = as compute says, int8 =
    rounded to 8 bits.
    """

    device: str = "cpu"
    strategy: str = ""
    compute: str = "bfloat16"
    activations: str = "auto"
    kernels: str = "native"
    threads: int = 0
    cpu_target: str = ""
    library: Path | None = None

    def __post_init__(self) -> None:
        _check(self.device in DEVICES, "--device", self.device, "one of " + ", ".join(DEVICES))
        _check(self.compute in COMPUTE, "--compute", self.compute, "one of " + ", ".join(COMPUTE))
        rule = "one of " + ", ".join(ACTIVATIONS)
        _check(self.activations in ACTIVATIONS, "--activations", self.activations, rule)
        if self.activations == "int8" and self.compute == "float32":
            raise _bad("--activations", "int8", "auto with --compute float32")
        _check(self.kernels in KERNELS, "--kernels", self.kernels, "one of " + ", ".join(KERNELS))
        _check(0 <= self.threads <= 1024, "--threads", self.threads, "0 to 1024")
        known = ("", *STRATEGIES)
        _check(
            self.strategy in known, "--strategy", self.strategy, "one of " + ", ".join(STRATEGIES)
        )
        if self.device == "cpu" and self.strategy not in ("", "cpu"):
            rule = "cpu: --device cpu has no memory of its own to copy experts to"
            raise _bad("--strategy", self.strategy, rule)

    @property
    def chosen_strategy(self) -> str:
        """The strategy in force, once the device is settled."""
        return self.strategy or ("cpu" if self.device == "cpu" else "auto")


@dataclass(frozen=True)
class ServerConfig:
    """How the engine is reached. address: unix:PATH or tcp:HOST:PORT. Units: seconds."""

    address: str = "tcp:127.0.0.1:0"
    token: str = field(default="", repr=False)
    adopt: bool = False
    orphan_s: float = 0.0
    drain_s: float = DRAIN_S

    def __post_init__(self) -> None:
        kind, _, rest = self.address.partition(":")
        _check(
            kind in ("unix", "tcp") and bool(rest),
            "--address",
            self.address,
            "unix:PATH or tcp:HOST:PORT",
        )
        _check(self.orphan_s >= 0, "--orphan-s", self.orphan_s, "0 (automatic) or more")
        if kind == "tcp" and not self.token:
            raise _bad("--address", self.address, "unix:PATH, or given together with --token-file")

    @property
    def orphan_limit_s(self) -> float:
        """How long an idle engine stays when nobody asks for its health any more."""
        return self.orphan_s or (ORPHAN_ADOPT_S if self.adopt else ORPHAN_S)


@dataclass(frozen=True)
class EngineConfig:
    """One engine: which model, how much of it, on what.

    Units: context_tokens per sequence, 0 = as trained; num_parallel sequences; step_tokens is the
    most tokens one step computes. prefix_cache: what was computed is kept and reused.
    prefill_share: part of the time that prompts get while streams run; 1 = all that is left.
    """

    ftw: Path
    context_tokens: int = 0
    num_parallel: int = 1
    step_tokens: int = 512
    max_waiting: int = 512
    prefix_cache: bool = True
    prefill_share: float = PREFILL_SHARE
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def __post_init__(self) -> None:
        _check(self.context_tokens >= 0, "--context", self.context_tokens, "0 (as trained) or more")
        _check(1 <= self.num_parallel <= 1024, "--parallel", self.num_parallel, "1 to 1024")
        _check(1 <= self.step_tokens <= 8192, "--step-tokens", self.step_tokens, "1 to 8192")
        _check(self.max_waiting >= 1, "--max-waiting", self.max_waiting, "1 or more")
        _check(0 < self.prefill_share <= 1, "--prefill-share", self.prefill_share, "in (0, 1]")
        if self.memory.park_dir is not None and not self.prefix_cache:
            rule = "left out with --no-prefix-cache: nothing is kept that could be parked"
            raise _bad("--park-dir", self.memory.park_dir, rule)
        slots = self.memory.expert_slots or self.memory.expert_bytes
        if slots and self.compute.chosen_strategy == "cpu":
            rule = "left out: under the strategy cpu every expert is computed where it lies"
            raise _bad("--expert-slots", slots, rule)


def kernel_folder() -> Path:
    """Where compiled GPU kernels are kept: below FT_HOME, else where the manager keeps its own."""
    home = os.environ.get("FT_HOME", "")
    folder = Path(home or platformdirs.user_data_dir("ft", appauthor=False))
    return folder.expanduser().absolute() / "cache" / "kernels"


def fault_plan() -> str:
    """The fault points that a test armed for this process (FT_FAULTS), or an empty text."""
    return os.environ.get("FT_FAULTS", "")


def parse_serve_arguments(arguments: Sequence[str]) -> tuple[EngineConfig, ServerConfig]:
    """Read the arguments of `python -m ftengine serve`.

    Raises: RequestError "bad_setting" naming the option and its rule; SystemExit on --help or on
    an unknown option, as argparse does.
    """
    given = _parser().parse_args(arguments)
    token = _read_token(given.token_file)
    engine = EngineConfig(
        ftw=given.ftw,
        context_tokens=given.context,
        num_parallel=given.parallel,
        step_tokens=given.step_tokens,
        max_waiting=given.max_waiting,
        prefix_cache=not given.no_prefix_cache,
        prefill_share=given.prefill_share,
        compute=ComputeConfig(
            device=given.device,
            compute=given.compute,
            activations=given.activations,
            kernels=given.kernels,
            threads=given.threads,
            cpu_target=given.cpu_target,
            library=given.library,
            strategy=given.strategy,
        ),
        memory=MemoryConfig(
            kv_bytes=given.kv_bytes,
            expert_slots=given.expert_slots,
            expert_bytes=given.expert_bytes,
            device_bytes=given.device_bytes,
            tier=given.tier,
            checkpoint_bytes=given.checkpoint_bytes,
            kv_format=given.kv_format,
            park_bytes=given.park_bytes,
            park_dir=given.park_dir,
            park_disk_bytes=given.park_disk_bytes,
        ),
    )
    server = ServerConfig(
        address=given.address, token=token, adopt=given.adopt, orphan_s=given.orphan_s
    )
    return engine, server


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ftengine serve", allow_abbrev=False)
    add = parser.add_argument
    add("--ftw", type=Path, required=True, help="folder of the converted model")
    add("--address", required=True, help="unix:PATH or tcp:127.0.0.1:0")
    add("--context", type=int, default=0, help="tokens per sequence; 0 = as trained")
    add("--parallel", type=int, default=1, help="sequences computed together")
    add("--device", default="cpu", help="one of " + ", ".join(DEVICES))
    add("--compute", default="bfloat16", help="one of " + ", ".join(COMPUTE))
    add("--activations", default="auto", help="of products: " + ", ".join(ACTIVATIONS))
    add("--kernels", default="native", help="one of " + ", ".join(KERNELS))
    add("--threads", type=int, default=0, help="worker threads; 0 = one per usable core")
    add("--cpu-target", default="", help="force a kernel target: scalar, avx2, avx512")
    add("--library", type=Path, default=None, help="path of the native library")
    add("--token-file", type=Path, default=None, help="file with the bearer token")
    add("--adopt", action="store_true", help="wait 30 s for a new manager instead of 5 s")
    add("--kv-bytes", type=int, default=0, help="memory for KV pages; 0 = context * parallel")
    add("--kv-format", default="auto", help="of keys and values: " + ", ".join(KV_FORMATS))
    add("--strategy", default="", help="who computes misses: " + ", ".join(STRATEGIES))
    add("--expert-slots", type=int, default=0, help="experts kept on the device; 0 = what fits")
    add("--expert-bytes", type=int, default=0, help="the same in bytes")
    add("--device-bytes", type=int, default=0, help="most device memory to take; 0 = automatic")
    add("--tier", default="auto", help="host experts in memory or on disk: " + ", ".join(TIERS))
    add("--step-tokens", type=int, default=512, help="most tokens of one step")
    add("--max-waiting", type=int, default=512, help="requests that may wait")
    add("--no-prefix-cache", action="store_true", help="compute every prompt from its beginning")
    add("--checkpoint-bytes", type=int, default=0, help="for kept states; 0 = automatic")
    add("--park-bytes", type=int, default=None, help="memory for parked conversations; 0 = none")
    add("--park-dir", type=Path, default=None, help="folder for parked conversations")
    add("--park-disk-bytes", type=int, default=0, help=f"of that folder; 0 = {PARK_DISK_BYTES}")
    add(
        "--prefill-share", type=float, default=PREFILL_SHARE, help="time for prompts beside streams"
    )
    add("--orphan-s", type=float, default=0.0, help="overrides the wait for a manager")
    return parser


def _read_token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(
            f"cannot read the token file {path}: {error}; write one line of text into it",
            code="bad_setting",
        ) from None
    if not token:
        raise EngineError(f"the token file {path} is empty", code="bad_setting")
    return token


def _check(ok: bool, option: str, value: object, rule: str) -> None:
    if not ok:
        raise _bad(option, value, rule)


def _bad(option: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{option} {value} is not valid: it must be {rule}", code="bad_setting")

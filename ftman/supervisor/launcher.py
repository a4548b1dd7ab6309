"""How an engine process is called: the argv. Tests put their own launcher here.

Nothing is started in this file; child.py does that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from ftman.config import EngineSettings
from ftman.supervisor.policy_events import EngineSpec

PROGRAM = (sys.executable, "-m", "ftengine")


class Launcher(Protocol):
    """Builds the command of one engine process."""

    def command(self, spec: EngineSpec, address: str, token_file: Path) -> list[str]:
        """The argv that makes an engine for `spec` listen at `address`."""

    def waiting(self) -> list[str]:
        """The argv of a process that may become any engine; [] = none is to be kept.

        It is `command` up to the verb, then a verb of its own; stdin brings what follows.
        """


class EngineLauncher:
    """The real engine: `python -m ftengine serve` with this interpreter."""

    def __init__(self, settings: EngineSettings):
        self._settings = settings

    def command(self, spec: EngineSpec, address: str, token_file: Path) -> list[str]:
        argv = [*PROGRAM, "serve"]
        argv += ["--ftw", str(spec.ftw_path), "--address", address]
        argv += ["--context", str(spec.context_tokens), "--parallel", str(spec.num_parallel)]
        argv += ["--device", spec.device, "--compute", spec.compute]
        argv += ["--threads", str(spec.threads), "--token-file", str(token_file)]
        settings = self._settings
        chosen = {
            "--cpu-target": settings.cpu_target,
            "--strategy": settings.strategy,
            "--expert-slots": str(settings.expert_slots or ""),
            "--tier": "" if settings.tier == "auto" else settings.tier,
            "--activations": "" if settings.activations == "auto" else settings.activations,
            "--kv-format": "" if settings.kv_cache_type == "auto" else settings.kv_cache_type,
            "--prefill-share": f"{settings.prefill_share:g}" if settings.prefill_share else "",
            "--park-bytes": "" if settings.park_bytes is None else str(settings.park_bytes),
            "--park-dir": str(settings.park_disk / spec.key) if settings.park_disk else "",
            "--park-disk-bytes": str(settings.park_disk_bytes or ""),
        }
        for option, value in chosen.items():
            argv += [option, value] if value else []
        argv += [] if settings.prefix_cache else ["--no-prefix-cache"]
        return argv

    def waiting(self) -> list[str]:
        return [] if self._settings.prepare_engine == "off" else [*PROGRAM, "wait"]

"""Which system's way is used here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from ftman.autostart.base import Autostart, AutostartError, Runner, run, service_call, user_id
from ftman.autostart.launchd import LaunchdAutostart
from ftman.autostart.systemd import SystemdAutostart
from ftman.autostart.windows import WindowsAutostart
from ftman.config import Paths


def autostart_here(
    paths: Paths,
    environ: Mapping[str, str],
    *,
    system: str = sys.platform,
    runner: Runner = run,
) -> Autostart:
    """The Autostart of this system.   Raises: AutostartError where there is none."""
    call = service_call(environ)
    if system == "linux":
        config_home = Path(platformdirs.user_config_dir("x", appauthor=False)).parent
        return SystemdAutostart(call, config_home, runner)
    if system == "darwin":
        log_path = paths.logs / "serve.log"
        return LaunchdAutostart(call, Path.home(), log_path, user_id(), runner)
    if system == "win32":
        return WindowsAutostart(call, paths.state, runner)
    raise AutostartError(
        f"starting at login is not built for {system}; built: linux (systemd), darwin, win32",
        hint="Start it by your system's own means: ft serve",
    )

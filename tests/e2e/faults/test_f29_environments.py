"""F29: the same commands in poor and odd environments give the same answers.

No terminal is there in any of them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from ftman.config import Paths
from tests.e2e.faults.manager_process import FAKE, SHORT, Rig, runs
from tests.e2e.processes import ROOT
from tests.ftman.gateway.serving import Tiny, install

DEAD_PROXY = "http://127.0.0.1:9"
COMMANDS = (
    ("list",),
    ("show", "tiny"),
    ("show", "tiny", "--modelfile"),
    ("ps",),
    ("ps", "--json"),
    ("search", "smol"),
    ("status",),
    ("show", "nosuch"),
    ("df",),
)
ODDITIES: tuple[dict[str, str | None], ...] = (
    {"HOME": None},
    {"HOME": "/nonexistent"},
    {"LC_ALL": "C", "LANG": "C"},
    {"LC_ALL": "xx_YY.nothing"},
    {"PYTHONIOENCODING": "ascii:strict"},
    {"PATH": "/nonexistent"},
    {"PATH": None},
    {"TERM": "dumb", "COLUMNS": "1"},
    {"TERM": None, "COLUMNS": "zero"},
    {"HTTP_PROXY": DEAD_PROXY, "http_proxy": DEAD_PROXY, "ALL_PROXY": DEAD_PROXY},
    {"HTTPS_PROXY": DEAD_PROXY, "NO_PROXY": " ,,*.,[::1,"},
    {"TMPDIR": "/nonexistent"},
    {"XDG_CONFIG_HOME": "relative", "XDG_DATA_HOME": ""},
    {"USER": None, "LOGNAME": None, "SHELL": None},
    {"TZ": "Nowhere/Here"},
)


def environment(rig: Rig, url: str, odd: dict[str, str | None]) -> dict[str, str]:
    """A usual environment with some of it odd; None = not set."""
    found = {
        "HOME": str(rig.root / "user" / "home"),
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LC_ALL": "C.UTF-8",
        "FT_HOME": str(rig.home),
        "FT_HOST": url.removeprefix("http://"),
        "PYTHONPATH": str(ROOT),
    }
    for key, value in odd.items():
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return found


def run(command: tuple[str, ...], env: dict[str, str], folder: Path) -> tuple[int, str, str]:
    """Exit code, what was asked for, and what was said beside it."""
    done = subprocess.run(
        [sys.executable, "-m", "ftman", *command],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    said = done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in said, (command, said)
    assert "ft itself failed" not in said, (command, said)
    return done.returncode, done.stdout.decode("utf-8"), said


def mixed(rng: random.Random) -> dict[str, str | None]:
    """One to three oddities at once."""
    found: dict[str, str | None] = {}
    for part in rng.sample(ODDITIES, rng.randrange(1, 4)):
        found |= part
    return found


@runs
def test_commands_say_the_same_in_every_environment(rig: Rig, num_points: int) -> None:
    install(Paths(rig.home, rig.home / "models"), Tiny(system="plain words"))
    for manifest in (rig.home / "models" / "manifests").rglob("latest"):
        os.utime(manifest, (time.time() - 3e5,) * 2)  # or "1 second ago" would become 2
    folder = rig.root / "user" / "tmpdir"
    with rig.manager(FAKE) as manager:
        commands = rig.rng.sample(COMMANDS, 2 if num_points <= SHORT else len(COMMANDS))
        usual: dict[tuple[str, ...], tuple[int, str, str]] = {}
        for _ in range(num_points):
            command, odd = rig.rng.choice(commands), mixed(rig.rng)
            if command not in usual:
                usual[command] = run(command, environment(rig, manager.url, {}), folder)
            found = run(command, environment(rig, manager.url, odd), folder)
            assert found == usual[command], (command, odd)
        # What differs between the shell and the manager is told by the verb that is about it.
        told = run(("settings",), environment(rig, manager.url, {"FT_KEEP_ALIVE": "77s"}), folder)
        assert "keep_alive is 77 here (FT_KEEP_ALIVE), but the running manager has 300" in told[2]


def test_a_manager_starts_and_answers_with_next_to_no_environment(rig: Rig) -> None:
    install(Paths(rig.home, rig.home / "models"))
    poor = {"LC_ALL": "C", "PATH": "/nonexistent", "HOME": "/nonexistent", "TZ": "Nowhere/Here"}
    proxies = {"HTTP_PROXY": DEAD_PROXY, "HTTPS_PROXY": DEAD_PROXY, "NO_PROXY": "x,,*."}
    with rig.manager(FAKE, **poor | proxies) as manager:
        code, out, _ = run(("run", "tiny", "hi"), environment(rig, manager.url, {}), rig.root)
        assert (code, out.strip()) == (0, "Hello world")

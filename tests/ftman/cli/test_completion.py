"""The completion scripts, run by the shells they are for; each skips where its shell is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ftman.catalog.samples import catalog_in, make_ftw, name_of, new_model
from tests.ftman.cli.conftest import Cli

ROOT = Path(__file__).resolve().parents[3]
LINES = (
    ("ft sho", {"show"}),
    ("ft run smol:1", {"smol:135m", "smol:1b"}),
    ("ft show smol:135m --li", {"--license"}),
    ("ft key create x --rights ", {"use", "manage"}),
)
# Takes the place of zsh's own builtin, which works only inside of the line editor.
ZSH = """
compadd() {{ [[ $1 == -- ]] && shift; print -l -- "$@" }}
_files() {{ print -l -- a-file }}
source {script}
words=({words}); CURRENT=$#words
_ft
"""


@pytest.fixture
def shell_environment(tmp_path: Path) -> dict[str, str]:
    """A home with two models in it, and the real `ft` on the path."""
    catalog = catalog_in(tmp_path / "ft-home")
    for tag in ("135m", "1b"):
        catalog.commit(name_of("smol", tag), new_model(make_ftw(catalog.paths, 1)))
    program = tmp_path / "bin" / "ft"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ftman "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    home = {"HOME": str(tmp_path), "FT_HOME": str(tmp_path / "ft-home")}
    return {"PATH": path, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **home}


def said_by(shell: list[str], environment: dict[str, str]) -> list[str]:
    """What a shell prints, with nothing on stderr."""
    done = subprocess.run(
        shell, env=environment, cwd=environment["HOME"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes_by_its_own_machinery(
    ft: Cli, tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    script = tmp_path / "ft.fish"
    script.write_text(ft("completion", "fish").out)
    for line, expected in LINES:
        code = f"source {script}; complete --do-complete '{line}'"
        found = said_by(["fish", "--no-config", "-c", code], shell_environment)
        assert {item.split("\t")[0] for item in found} >= expected, (line, found)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_runs_the_script(ft: Cli, tmp_path: Path, shell_environment: dict[str, str]) -> None:
    script = tmp_path / "ft.zsh"
    script.write_text(ft("completion", "zsh").out)
    for line, expected in LINES:
        words = [f"'{word}'" for word in line.split(" ")]
        code = ZSH.format(script=script, words=" ".join(words))
        found = said_by(["zsh", "-f", "-c", code], shell_environment)
        assert set(found) == expected, (line, found)
    code = ZSH.format(script=script, words="ft create m -f ''")
    assert said_by(["zsh", "-f", "-c", code], shell_environment) == ["a-file"]

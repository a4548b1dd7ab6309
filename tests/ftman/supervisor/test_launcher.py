"""The command line of a real engine: every setting that was made, none that was not."""

from __future__ import annotations

import itertools
from pathlib import Path

from ftman.config import EngineSettings
from ftman.supervisor.launcher import EngineLauncher
from tests.ftman.supervisor.harness import make_spec


def command(settings: EngineSettings) -> list[str]:
    return EngineLauncher(settings).command(make_spec(), "unix:/s", Path("/token"))


def test_settings_at_their_defaults_are_left_out() -> None:
    found = command(EngineSettings())
    for option in ("--strategy", "--expert-slots", "--tier", "--cpu-target"):
        assert option not in found
    assert "--no-prefix-cache" not in found
    assert "--prefill-share" not in found


def test_settings_that_were_made_are_passed_on() -> None:
    found = command(
        EngineSettings(
            strategy="split",
            expert_slots=24,
            tier="disk",
            cpu_target="avx2",
            prefix_cache=False,
            prefill_share=0.5,
        )
    )
    assert "--no-prefix-cache" in found
    pairs = dict(itertools.pairwise(found))
    assert pairs["--strategy"] == "split"
    assert pairs["--expert-slots"] == "24"
    assert pairs["--tier"] == "disk"
    assert pairs["--prefill-share"] == "0.5"
    assert pairs["--cpu-target"] == "avx2"

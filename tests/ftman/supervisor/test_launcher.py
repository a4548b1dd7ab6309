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
    for option in ("--strategy", "--expert-slots", "--tier", "--cpu-target", "--kv-format"):
        assert option not in found
    assert "--activations" not in found
    assert "--no-prefix-cache" not in found
    assert "--prefill-share" not in found
    assert not [option for option in found if option.startswith("--park")]


def test_settings_that_were_made_are_passed_on() -> None:
    found = command(
        EngineSettings(
            device="emulated",
            strategy="split",
            expert_slots=24,
            tier="disk",
            cpu_target="avx2",
            prefix_cache=False,
            prefill_share=0.5,
            kv_cache_type="q8_0",
            activations="int8",
        )
    )
    assert "--no-prefix-cache" in found
    pairs = dict(itertools.pairwise(found))
    assert pairs["--strategy"] == "split"
    assert pairs["--expert-slots"] == "24"
    assert pairs["--tier"] == "disk"
    assert pairs["--prefill-share"] == "0.5"
    assert pairs["--kv-format"] == "q8_0"
    assert pairs["--activations"] == "int8"
    assert pairs["--cpu-target"] == "avx2"


def test_conversations_are_parked_in_a_folder_for_each_model() -> None:
    found = command(EngineSettings(park_bytes=0))
    assert dict(itertools.pairwise(found))["--park-bytes"] == "0"
    settings = EngineSettings(park_disk=Path("/parked"), park_disk_bytes=5)
    pairs = dict(itertools.pairwise(command(settings)))
    assert pairs["--park-dir"] == "/parked/aaaa"
    assert pairs["--park-disk-bytes"] == "5"
    assert "--park-bytes" not in pairs

"""The plan before a pull: what it says, and when it stops the pull."""

from __future__ import annotations

import io
from typing import Any

import pytest

from ftman.cli.client import ManagerClient
from ftman.cli.commands.pull import pull
from ftman.cli.output import Output
from ftman.cli.pull_plan import plan_text
from ftman.cli.session import Session
from ftman.config import load_config
from ftman.errors import CannotFitError
from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import Gateway, Reply

FORECAST = {
    "fits": True,
    "reason": "",
    "tier": "ram",
    "ram_bytes": 429_000_000_000,
    "vram_bytes": 0,
    "machine_ram_bytes": 512_000_000_000,
    "context_tokens": 32768,
    "prompt_tokens": 1024,
    "tokens_per_s": 13.4,
    "ttft_s": 7.0,
    "strategy": "cpu",
}
PLAN: dict[str, Any] = {
    "name": "glm-5.2:nvfp4",
    "origin": "hf://nvidia/GLM-5.2-NVFP4@main",
    "license": "mit",
    "family": "glm_moe_dsa",
    "total_params": 743_900_000_000,
    "active_params": 41_800_000_000,
    "num_files": 91,
    "download_bytes": 433_100_000_000,
    "disk_bytes": 433_000_000_000,
    "need_disk_bytes": 443_000_000_000,
    "free_disk_bytes": 1_200_000_000_000,
    "fits_disk": True,
    "forecast": FORECAST,
}
PULL = [{"status": "pulling manifest"}, {"status": "success"}]
TOO_SMALL = {**PLAN, "forecast": {**FORECAST, "fits": False, "reason": "9 GB needed, 4 GB there"}}


def test_the_cost_is_told_before_the_first_byte(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/plan", PLAN)
    gateway.on("POST", "/api/pull", Reply(PULL))
    done = ft("pull", "glm-5.2")
    assert (done.code, done.out) == (0, "")
    lines = done.err.splitlines()
    assert lines[0] == (
        "glm-5.2:nvfp4   743.9B (41.8B active) parameters, glm_moe_dsa, mit, "
        "from hf://nvidia/GLM-5.2-NVFP4@main"
    )
    assert "433 GB in 91 files" in lines[1]
    assert "free disk 1.2 TB   ok (433 GB stay, peak 443 GB while converting)" in lines[1]
    assert "429 GB of RAM at 32768 tokens" in lines[2]
    assert "13.4 tokens/s, first token 7.0 s" in lines[3]
    assert gateway.bodies("/api/ft/plan") == [{"model": "glm-5.2", "insecure": False}]


@pytest.mark.parametrize("flags", [(), ("--yes",)])
def test_what_cannot_run_here_is_not_fetched_unasked(
    ft: Cli, gateway: Gateway, flags: tuple[str, ...]
) -> None:
    gateway.on("POST", "/api/ft/plan", TOO_SMALL)
    done = ft("pull", "glm-5.2", *flags)
    assert done.code == 3
    assert "9 GB needed, 4 GB there" in done.err
    assert "ft pull glm-5.2 --insist" in done.err
    assert not gateway.bodies("/api/pull")


def test_insisting_pulls_it_all_the_same(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/plan", TOO_SMALL)
    gateway.on("POST", "/api/pull", Reply(PULL))
    assert ft("pull", "glm-5.2", "--insist").code == 0


def test_a_plan_that_cannot_be_made_leaves_the_word_to_the_pull(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/plan", Reply({"error": "hub is down"}, 502))
    gateway.on("POST", "/api/pull", Reply(PULL))
    done = ft("pull", "m")
    assert done.code == 0
    assert "hub is down" not in done.err


@pytest.mark.parametrize("plan", [{}, {**PLAN, "up_to_date": True}])
def test_nothing_is_said_where_nothing_will_be_fetched(
    ft: Cli, gateway: Gateway, plan: dict[str, Any]
) -> None:
    gateway.on("POST", "/api/ft/plan", plan)
    gateway.on("POST", "/api/pull", Reply(PULL))
    assert "GB" not in ft("pull", "m").err


def test_unknown_speed_and_slow_tiers_are_said() -> None:
    unmeasured = {k: v for k, v in FORECAST.items() if k not in ("tokens_per_s", "ttft_s")}
    text = plan_text({**PLAN, "forecast": {**unmeasured, "tier": "disk"}})
    assert "speed not known" in text
    assert "read from disk, slow" in text
    assert "not known yet: a wheel" in plan_text(
        {**PLAN, "forecast": None, "note": "a wheel has no headers"}
    )


class Keyboard(io.StringIO):
    """A person at a terminal who types one answer."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "pulls"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_a_person_is_asked_whether_to_pull_it_all_the_same(
    gateway: Gateway, typed: str, pulls: bool
) -> None:
    gateway.on("POST", "/api/ft/plan", TOO_SMALL)
    gateway.on("POST", "/api/pull", Reply(PULL))
    screen = Keyboard()
    session = Session(load_config(), Output(io.StringIO(), screen), Keyboard(typed))
    with ManagerClient(gateway.url) as manager:
        if pulls:
            pull(manager, session, "glm-5.2", insecure=False)
        else:
            with pytest.raises(CannotFitError):
                pull(manager, session, "glm-5.2", insecure=False)
    assert "Pull it all the same? [y/N]" in screen.getvalue()
    assert bool(gateway.bodies("/api/pull")) == pulls

"""ft fit: what is sent, what is printed, and the status when it cannot fit."""

from __future__ import annotations

import pytest

from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import Gateway, Reply

ANSWER = {
    "fits": True,
    "reason": "",
    "device": "rtx-4060-laptop",
    "context_tokens": 32768,
    "prompt_tokens": 1024,
    "ram_bytes": 18_100_000_000,
    "vram_bytes": 8_000_000_000,
    "disk_bytes": 23_000_000_000,
    "expert_slots": 1200,
    "cached_share": 0.12,
    "miss_rate": 0.37,
    "strategy": "split",
    "tier": "ram",
    "tokens_per_s": 32.2,
    "ttft_s": 1.4,
}


def test_a_forecast_is_printed_with_its_origin(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/fit", Reply(ANSWER))
    done = ft("fit", "m", "--device", "rtx-4060-laptop")
    assert done.code == 0
    assert "1200 in slots (12%), 37% misses, strategy split" in done.out
    assert "32.2 tokens/s" in done.out
    assert "computed, not measured" in done.out
    assert gateway.bodies("/api/ft/fit") == [{"model": "m", "device": "rtx-4060-laptop"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("m", "--context", "0"), "context must be 1 or more, got 0"),
        (("m", "--device", "/etc/x.toml"), "is not the name of a profile"),
        (("../x", "--device", "rtx-4060-laptop"), "there is no file or folder ../x"),
    ],
)
def test_a_wrong_question_is_refused_before_anybody_is_asked(
    ft: Cli, gateway: Gateway, words: tuple[str, ...], said: str
) -> None:
    done = ft("fit", *words)
    assert done.code in (2, 5)
    assert said in done.err
    assert gateway.requests == []


def test_what_does_not_fit_says_why_and_ends_with_3(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/fit", Reply({**ANSWER, "fits": False, "reason": "9 bytes needed"}))
    done = ft("fit", "m")
    assert done.code == 3
    assert "does not fit on rtx-4060-laptop: 9 bytes needed" in done.out

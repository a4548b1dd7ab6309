"""Prompts beside running streams: these keep their rate, whatever a prompt token costs."""

from __future__ import annotations

import random
import statistics

import pytest

from ftengine.config import PREFILL_SHARE
from ftengine.scheduler.share import LEAST_TOKENS, PrefillShare


def simulate(share: float, token_s: float, decode_s: float, pending: int) -> tuple[float, float]:
    """(streams' rate of what it is alone, part of the time that went to the prompt)."""
    account = PrefillShare(share)
    now, steps, on_prompt, left = 0.0, 0, 0.0, pending
    for _ in range(50):
        account.took(decode_s, 4, 0)
    while left > 0 and steps < 100_000:
        count = min(account.allowed(4, left, 512), left)
        took = decode_s + count * token_s
        account.took(took, 4, count)
        left -= count
        now += took
        steps += 1
        on_prompt += count * token_s
    return steps * decode_s / now, on_prompt / now


@pytest.mark.parametrize("token_s", [1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("decode_s", [0.002, 0.02, 0.2])
def test_streams_keep_their_rate_beside_a_long_prompt(token_s: float, decode_s: float) -> None:
    kept, _ = simulate(PREFILL_SHARE, token_s, decode_s, int(max(16_000, 10 / token_s)))
    assert kept >= 0.8


def test_share_is_used_and_not_left() -> None:
    kept, used = simulate(0.3, 1e-3, 0.01, 16_000)
    assert kept == pytest.approx(0.7, abs=0.02)
    assert used == pytest.approx(0.3, abs=0.02)


def test_without_streams_prompts_take_the_whole_step() -> None:
    account = PrefillShare(0.2)
    account.took(5.0, 1, 100)
    assert account.allowed(0, 9000, 512) == 512
    assert account.allowed(1, 9000, 512) == 0


def test_a_share_of_one_takes_what_is_left_of_each_step() -> None:
    account = PrefillShare(1.0)
    account.took(5.0, 1, 100)
    assert account.allowed(1, 9000, 511) == 511


def test_what_is_short_goes_at_once_after_a_quiet_time() -> None:
    account = PrefillShare(0.2)
    account.took(0.01 + 0.032, 2, LEAST_TOKENS)
    for _ in range(200):
        account.took(0.01, 2, 0)
    assert account.allowed(2, 100, 512) >= 100


def test_a_token_dearer_than_all_credit_still_gets_its_turn() -> None:
    account = PrefillShare(0.2)
    account.took(1.0, 2, 0)
    account.took(60.0, 2, 1)
    for _ in range(1000):
        if account.allowed(2, 50, 512):
            return
        account.took(1.0, 2, 0)
    raise AssertionError("the prompt starved")


def noisy(share: float, seed: int, token_s: float, decode_s: float) -> tuple[float, float]:
    """As simulate, on a machine whose steps stop now and then; its cost per token doubles.

    (rate kept, longest step over one without a stop and a prompt)
    """
    rng = random.Random(seed)
    account = PrefillShare(share)
    left, plain, longest = 16_000, [], 0.0
    total, steps = 0.0, 0
    for _ in range(50):
        account.took(decode_s, 4, 0)
    while left > 0 and steps < 100_000:
        count = min(account.allowed(4, left, 512), left)
        stop = 100 * decode_s * rng.random() if rng.random() < 0.03 else 0.0
        wanted = count * token_s * (2 - left / 16_000)
        account.took(decode_s + wanted + stop, 4, count)
        if not count:
            plain.append(decode_s + stop)
        left -= count
        total += decode_s + wanted + stop
        steps += 1
        longest = max(longest, wanted)
    return steps * statistics.mean(plain) / total, longest


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("token_s", "decode_s"), [(1e-4, 0.002), (1e-3, 0.02), (5e-5, 0.02)])
def test_a_machine_that_stops_now_and_then_does_not_make_prompts_look_cheap(
    seed: int, token_s: float, decode_s: float
) -> None:
    kept, longest = noisy(PREFILL_SHARE, seed, token_s, decode_s)
    assert kept >= 0.8
    assert longest <= 0.4


def test_steps_without_a_prompt_come_often_even_where_prompts_cost_nothing() -> None:
    account = PrefillShare(0.2)
    for _ in range(20):
        account.took(0.1, 4, 0)
    counts = []
    for _ in range(100):
        counts.append(account.allowed(4, 9000, 512))
        account.took(0.1, 4, counts[-1])
    assert counts.count(0) >= 15
    assert sum(counts) > 20_000


def test_a_chunk_is_at_most_twice_the_one_before() -> None:
    account = PrefillShare(0.2)
    for _ in range(20):
        account.took(0.1, 4, 0)
    assert account.allowed(4, 9000, 512) == LEAST_TOKENS
    account.took(0.1, 4, LEAST_TOKENS)
    assert account.allowed(4, 9000, 512) == 2 * LEAST_TOKENS

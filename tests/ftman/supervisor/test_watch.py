"""The judge of health answers, on paper time."""

from __future__ import annotations

from ftman.supervisor.client import Health
from ftman.supervisor.watch import HealthJudge, Timings

TIMINGS = Timings(load_s=300.0, wedge_s=30.0)


def judge() -> HealthJudge:
    return HealthJudge("m", TIMINGS, 0.0)


def busy(last_step_s: float | None, running: int = 1) -> Health:
    return Health("ready", running=running, last_step_s=last_step_s)


def test_steps_that_finish_keep_a_busy_engine_healthy() -> None:
    it = judge()
    assert all(it.answered(busy(0.5), float(now_s)) is None for now_s in range(1000))


def test_pending_work_without_a_step_for_thirty_seconds_is_a_wedge() -> None:
    it = judge()
    assert it.answered(busy(0.0), 0.0) is None
    assert it.answered(busy(29.0), 29.0) is None
    error = it.answered(busy(30.0), 30.0)
    assert error is not None
    assert error.code == "engine_wedged"


def test_first_step_that_never_comes_is_a_wedge_too() -> None:
    it = judge()
    assert it.answered(busy(None), 5.0) is None
    assert it.answered(busy(None), 34.0) is None
    assert it.answered(busy(None), 35.0) is not None


def test_old_step_of_an_idle_engine_does_not_count_when_work_comes() -> None:
    it = judge()
    assert it.answered(busy(3600.0, running=0), 3600.0) is None
    assert it.answered(busy(3601.0), 3601.0) is None
    assert it.answered(busy(3630.0), 3630.0) is None
    assert it.answered(busy(3631.0), 3631.0) is not None


def test_ready_engine_that_stops_answering_is_a_wedge_even_when_idle() -> None:
    it = judge()
    it.answered(busy(None, running=0), 10.0)
    assert it.silent(39.0) is None
    assert it.silent(40.0) is not None


def test_load_timeout_counts_from_the_last_progress() -> None:
    it = judge()
    for now_s in range(0, 2000, 100):
        assert it.answered(Health("loading", loaded_bytes=now_s), float(now_s)) is None
    assert it.silent(2199.0) is None
    error = it.answered(Health("loading", loaded_bytes=1900), 2200.0)
    assert error is not None
    assert error.code == "load_failed"


def test_failed_load_carries_the_engine_s_own_words() -> None:
    error = judge().answered(Health("failed", error="shard 3 is cut short"), 1.0)
    assert error is not None
    assert "shard 3 is cut short" in error.message


def test_silence_of_a_loaded_engine_is_a_wedge_even_if_it_never_answered_a_poll() -> None:
    loading, loaded = judge(), HealthJudge("m", TIMINGS, 0.0, loaded=True)
    assert loaded.silent(10.0) is None
    error = loaded.silent(30.0)
    assert error is not None
    assert error.code == "engine_wedged"
    assert loading.silent(10.0) is None
    assert loading.silent(30.0) is None
    error = loading.silent(300.0)
    assert error is not None
    assert error.code == "load_failed"


def test_how_long_it_is_stuck_is_told_before_it_is_given_up() -> None:
    it = judge()
    assert it.answered(busy(0.0), 0.0) is None
    assert it.answered(busy(16.0), 16.0) is None
    assert it.stuck_s == 16.0
    assert it.answered(busy(0.0), 17.0) is None
    assert it.stuck_s == 0.0
    assert it.silent(30.0) is None
    assert it.stuck_s == 13.0
    assert it.answered(busy(None, running=0), 31.0) is None
    assert it.stuck_s == 0.0

"""The policy by example: one behaviour each, no processes, no clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftman.errors import BusyError, CannotFitError, EngineDiedError, FtmanError
from ftman.supervisor.policy import Policy
from ftman.supervisor.policy_events import (
    Adopted,
    Arrived,
    Cancelled,
    Effect,
    EngineSpec,
    Exited,
    Grant,
    Limits,
    Loaded,
    Memory,
    PolicyEvent,
    Reject,
    Released,
    ShutdownAsked,
    StartEngine,
    StopEngine,
    Ticked,
    UnloadAsked,
)
from tests.ftman.supervisor.harness import GIB, make_spec

A, B, C = make_spec("aaaa"), make_spec("bbbb"), make_spec("cccc")
A_LONG = make_spec("aaaa", context_tokens=8192)


class Table:
    """A policy with a hand-moved clock and memory."""

    def __init__(self, **limits: Any):
        self.policy = Policy(Limits(**{"max_loaded_models": 1, "keep_alive_s": 300.0, **limits}))
        self.now_s = 0.0
        self.memory = Memory(16 * GIB, 16 * GIB)

    def do(self, event: PolicyEvent) -> list[Effect]:
        return self.policy.handle(event, self.now_s, self.memory)

    def load(self, request_id: int, spec: EngineSpec, keep_alive_s: float | None = None) -> int:
        """Have `spec` started for a request and ready; returns the engine's id."""
        (start,) = self.do(Arrived(request_id, spec, keep_alive_s))
        assert isinstance(start, StartEngine)
        assert self.do(Loaded(start.engine_id)) == [Grant(request_id, start.engine_id)]
        return start.engine_id

    def fail_start(self, request_id: int, spec: EngineSpec, text: str) -> FtmanError:
        (start,) = self.do(Arrived(request_id, spec))
        assert isinstance(start, StartEngine)
        (answer,) = self.do(Exited(start.engine_id, EngineDiedError(text)))
        return refused(answer)


def refused(effect: Effect) -> FtmanError:
    assert isinstance(effect, Reject)
    return effect.error


def test_first_request_starts_an_engine_and_later_ones_share_it() -> None:
    table = Table()
    assert table.do(Arrived(1, A)) == [StartEngine(1, A)]
    assert table.do(Arrived(2, A)) == []
    assert table.do(Loaded(1)) == [Grant(1, 1), Grant(2, 1)]
    assert table.do(Arrived(3, A)) == [Grant(3, 1)]


def test_keep_alive_counts_from_the_last_release() -> None:
    table = Table()
    engine_id = table.load(1, A, 10.0)
    table.now_s = 50.0
    assert table.policy.next_deadline_s() is None, "in use: no deadline"
    assert table.do(Released(1)) == []
    assert table.policy.next_deadline_s() == 60.0
    table.now_s = 59.9
    assert table.do(Ticked()) == []
    table.now_s = 60.0
    assert table.do(Ticked()) == [StopEngine(engine_id, "idle")]


@pytest.mark.parametrize(
    ("given", "deadline_s"), [(None, 300.0), (0.5, 0.5), (-1.0, None), (7.0, 7.0)]
)
def test_keep_alive_table(given: float | None, deadline_s: float | None) -> None:
    table = Table()
    table.load(1, A, given)
    table.do(Released(1))
    assert table.policy.next_deadline_s() == deadline_s


def test_keep_alive_zero_unloads_when_the_last_of_several_requests_ends() -> None:
    table = Table()
    engine_id = table.load(1, A, 0.0)
    table.do(Arrived(2, A))
    assert table.do(Released(1)) == []
    assert table.do(Released(2)) == [StopEngine(engine_id, "idle")]


def test_latest_request_that_names_a_keep_alive_wins() -> None:
    table = Table()
    table.load(1, A, 0.0)
    table.do(Arrived(2, A, 9.0))
    table.do(Arrived(3, A, None))
    for request_id in (1, 2, 3):
        assert table.do(Released(request_id)) == []
    assert table.policy.next_deadline_s() == 9.0


def test_unload_waits_for_active_requests() -> None:
    table = Table()
    engine_id = table.load(1, A, -1.0)
    assert table.do(UnloadAsked("aaaa")) == []
    assert table.do(Released(1)) == [StopEngine(engine_id, "idle")]


def test_second_model_evicts_the_idle_first_on_one_slot() -> None:
    table = Table()
    engine_id = table.load(1, A)
    table.do(Released(1))
    assert table.do(Arrived(2, B)) == [StopEngine(engine_id, "evicted")]
    assert table.do(Exited(engine_id, EngineDiedError("stopped"))) == [StartEngine(2, B)]


def test_second_model_waits_for_a_busy_first_which_takes_nothing_new() -> None:
    table = Table()
    table.load(1, A)
    assert table.do(Arrived(2, B)) == []
    assert table.do(Arrived(3, A)) == [], "granting this could keep the first busy for ever"
    assert table.do(Released(1)) == [StopEngine(1, "evicted")]
    assert table.do(Exited(1, EngineDiedError("stopped"))) == [StartEngine(2, B)]
    assert table.do(Loaded(2)) == [Grant(2, 2)]


def test_engine_that_runs_dry_stays_the_one_when_another_becomes_less_worthy() -> None:
    table = Table(max_loaded_models=2)
    table.load(1, A, 10.0)
    table.load(2, B, 60.0)
    assert table.do(Arrived(3, C)) == []
    assert table.do(Arrived(4, B, 1.0)) == [Grant(4, 2)]
    assert table.do(Arrived(5, A)) == [], "A was chosen, or the choice could go round for ever"
    assert table.do(Released(1)) == [StopEngine(1, "evicted")]


def test_first_model_serves_again_when_the_waiting_request_is_cancelled() -> None:
    table = Table()
    table.load(1, A)
    table.do(Arrived(2, B))
    table.do(Arrived(3, A))
    assert table.do(Cancelled(2)) == [Grant(3, 1)]


def test_two_models_stay_when_both_fit() -> None:
    table = Table(max_loaded_models=3)
    table.load(1, A)
    assert table.do(Arrived(2, B)) == [StartEngine(2, B)]


def test_memory_short_for_both_evicts() -> None:
    table = Table(max_loaded_models=3)
    table.load(1, A)
    table.do(Released(1))
    table.memory = Memory(16 * GIB, GIB // 2)
    assert table.do(Arrived(2, B)) == [StopEngine(1, "evicted")]


def test_promised_memory_counts_even_if_the_system_calls_it_free() -> None:
    table = Table(max_loaded_models=3)
    table.load(1, make_spec("aaaa", need_bytes=10 * GIB))
    table.do(Released(1))
    assert table.do(Arrived(2, make_spec("bbbb", need_bytes=8 * GIB))) == [StopEngine(1, "evicted")]


@pytest.mark.parametrize("adopted", [False, True])
def test_memory_that_an_engine_may_park_in_is_not_given_to_another(adopted: bool) -> None:
    """It says so once it is loaded; nothing of it need be in use."""
    spec, other = make_spec("aaaa", need_bytes=4 * GIB), make_spec("bbbb", need_bytes=10 * GIB)
    for promised, effects in ((0, [StartEngine(2, other)]), (7 * GIB, [StopEngine(1, "evicted")])):
        table = Table(max_loaded_models=3)
        if adopted:
            table.do(Adopted(1, spec, promised))
        else:
            table.do(Arrived(1, spec))
            table.do(Loaded(1, promised))
            table.do(Released(1))
        assert table.do(Arrived(2, other)) == effects


def test_victim_is_the_shortest_keep_alive_then_the_least_recently_used() -> None:
    table = Table(max_loaded_models=3)
    for number, (spec, keep) in enumerate(((A, -1.0), (B, 60.0), (C, 60.0)), start=1):
        table.now_s = float(number)
        table.load(number, spec, keep)
        table.do(Released(number))
    table.now_s = 10.0
    assert table.do(Arrived(9, make_spec("dddd"))) == [StopEngine(2, "evicted")]


def test_what_can_never_fit_is_refused_with_numbers_and_evicts_nobody() -> None:
    table = Table(max_loaded_models=3)
    table.load(1, A)
    table.do(Released(1))
    (answer,) = table.do(Arrived(2, make_spec("bbbb", need_bytes=40 * GIB)))
    error = refused(answer)
    assert isinstance(error, CannotFitError)
    assert "needs 42.9 GB" in error.message
    assert "17.2 GB" in error.message
    assert "num_ctx" in error.hint


def test_other_context_reloads_once_idle() -> None:
    table = Table(max_loaded_models=3)
    table.load(1, A)
    assert table.do(Arrived(2, A_LONG)) == []
    assert table.do(Released(1)) == [StopEngine(1, "reload")]
    assert table.do(Exited(1, EngineDiedError("stopped"))) == [StartEngine(2, A_LONG)]


def test_other_name_for_the_same_files_shares_the_engine() -> None:
    table = Table()
    table.load(1, A)
    assert table.do(Arrived(2, make_spec("aaaa", name="copy:latest"))) == [Grant(2, 1)]


def test_queue_overflow_is_refused_in_the_words_clients_know() -> None:
    table = Table(max_queue=2)
    for request_id in (1, 2):
        table.do(Arrived(request_id, A))
    error = refused(table.do(Arrived(3, A))[0])
    assert isinstance(error, BusyError)
    assert error.code == "queue_full"
    assert error.message == "server busy, please try again.  maximum pending requests exceeded"


def test_requests_beyond_the_sequences_of_an_engine_count_as_waiting() -> None:
    table = Table(max_queue=1)
    table.load(1, A)  # num_parallel is 2
    assert table.do(Arrived(2, A)) == [Grant(2, 1)]
    assert table.do(Arrived(3, A)) == [Grant(3, 1)]
    assert refused(table.do(Arrived(4, A))[0]).code == "queue_full"
    table.do(Released(1))
    assert table.do(Arrived(5, A)) == [Grant(5, 1)]


def test_failed_start_answers_all_who_wait_for_it_with_its_cause() -> None:
    table = Table()
    table.do(Arrived(1, A))
    table.do(Arrived(2, A))
    table.do(Arrived(3, B))
    cause = EngineDiedError("bad file")
    effects = table.do(Exited(1, cause))
    assert effects == [Reject(1, cause), Reject(2, cause), StartEngine(2, B)]


def test_third_failed_start_within_a_minute_opens_the_breaker() -> None:
    table = Table()
    for request_id, now_s in ((1, 0.0), (2, 20.0), (3, 40.0)):
        table.now_s = now_s
        assert (
            table.fail_start(request_id, A, f"cause {request_id}").message == f"cause {request_id}"
        )
    error = refused(table.do(Arrived(4, A))[0])
    assert isinstance(error, BusyError)
    assert "cause 1" in error.message
    assert error.retry_after_s == 10
    table.now_s = 50.0
    assert isinstance(table.do(Arrived(5, A))[0], StartEngine)


def test_breaker_backs_off_doubling_to_five_minutes() -> None:
    table = Table()
    for request_id in (1, 2, 3):
        table.fail_start(request_id, A, "no")
    waits = []
    for request_id in range(4, 11):
        error = refused(table.do(Arrived(request_id, A))[0])
        assert isinstance(error, BusyError)
        waits.append(error.retry_after_s)
        table.now_s += error.retry_after_s
        table.fail_start(request_id + 100, A, "still no")
    assert waits == [10, 20, 40, 80, 160, 300, 300]


def test_slow_failures_do_not_open_the_breaker() -> None:
    table = Table()
    for request_id in range(6):
        table.now_s += 31.0
        table.fail_start(request_id, A, "no")


def test_success_and_changed_settings_close_the_breaker() -> None:
    table = Table()
    for request_id in (1, 2, 3):
        table.fail_start(request_id, A, "no")
    assert isinstance(table.do(Arrived(4, A_LONG))[0], StartEngine), "other settings: try at once"
    table.do(Loaded(4))
    table.do(Released(4))
    assert table.do(Arrived(5, A)) == [StopEngine(4, "reload")]
    assert table.do(Exited(4, EngineDiedError("stopped"))) == [StartEngine(5, A)]


def test_death_of_a_ready_engine_lets_the_queue_go_on() -> None:
    table = Table()
    table.load(1, A)
    table.do(Arrived(2, B))
    assert table.do(Exited(1, EngineDiedError("killed"))) == [StartEngine(2, B)]
    assert table.do(Released(1)) == [], "the lease of a dead engine ends harmlessly"


def test_load_nobody_waits_for_any_more_is_aborted() -> None:
    table = Table()
    table.do(Arrived(1, A))
    table.do(Arrived(2, A))
    assert table.do(Cancelled(1)) == []
    assert table.do(Cancelled(2)) == [StopEngine(1, "cancelled")]
    assert table.do(Exited(1, EngineDiedError("stopped"))) == []
    assert isinstance(table.do(Arrived(3, A))[0], StartEngine), "an abort is no failed start"


def test_shutdown_answers_everybody_and_stops_every_engine() -> None:
    table = Table(max_loaded_models=2)
    table.load(1, A)
    table.do(Arrived(2, B))
    effects = table.do(ShutdownAsked())
    assert [type(effect) for effect in effects] == [Reject, StopEngine, StopEngine]
    assert refused(effects[0]).code == "shutting_down"
    assert refused(table.do(Arrived(3, A))[0]).code == "shutting_down"


def test_adopted_engine_serves_and_expires_like_any_other() -> None:
    table = Table()
    assert table.do(Adopted(7, A)) == []
    assert table.do(Arrived(1, A)) == [Grant(1, 7)]
    table.do(Released(1))
    table.now_s = 300.0
    assert table.do(Ticked()) == [StopEngine(7, "idle")]
    assert table.do(Exited(7, EngineDiedError("stopped"))) == []
    assert table.do(Arrived(2, B)) == [StartEngine(8, B)], "ids are never used twice"


def test_position_tells_the_place_in_the_queue() -> None:
    table = Table()
    table.load(1, A)
    table.do(Arrived(2, B))
    table.do(Arrived(3, C))
    assert [table.policy.position(n) for n in (1, 2, 3)] == [0, 1, 2]


def test_who_waits_is_told_for_what() -> None:
    memory = Memory(100, 100)
    policy = Policy(Limits(max_loaded_models=1))

    def feed(event: object) -> None:
        policy.handle(event, 0.0, memory)  # type: ignore[arg-type]

    def spec(key: str) -> EngineSpec:
        return EngineSpec(key, key, Path(key), 512, 1, "cpu", "bfloat16", 1, 10)

    feed(Arrived(1, spec("a")))
    assert policy.why(1) == "a is being loaded"
    feed(Arrived(2, spec("b")))
    assert policy.why(2) == "a is loaded first"
    feed(Loaded(1))
    assert policy.why(1) == ""
    assert policy.why(2) == "a finishes 1 requests, to make room"
    feed(Released(1))
    assert policy.why(2) == "a ends, to make room"
    feed(Exited(1, FtmanError("gone")))
    assert policy.why(2) == "b is being loaded"
    feed(Loaded(2))
    feed(Arrived(3, spec("b")))
    feed(Arrived(4, spec("b")))
    reason = "all 1 places of b are in use"
    assert policy.beyond_parallel() == [(3, 1, reason), (4, 2, reason)]


def test_a_background_request_waits_for_a_free_place_and_lets_others_past() -> None:
    table = Table()
    table.load(1, A)  # num_parallel is 2
    assert table.do(Arrived(2, A)) == [Grant(2, 1)]
    assert table.do(Arrived(3, A, background=True)) == []
    assert table.do(Arrived(4, A)) == [Grant(4, 1)], "beyond its places, an engine is asked anyway"
    assert table.policy.why(3).startswith("it gives way to others while all places of aaaa:tiny")
    assert table.do(Released(1)) == []
    assert table.do(Released(2)) == [Grant(3, 1)]


def test_a_background_request_that_waited_long_enough_is_like_any_other() -> None:
    table = Table(background_s=60.0)
    table.load(1, A)
    table.do(Arrived(2, A))
    table.do(Arrived(3, A, background=True))
    table.now_s = 59.9
    assert table.do(Ticked()) == []
    table.now_s = 60.0
    assert table.do(Ticked()) == [Grant(3, 1)]


def test_background_requests_come_last_in_the_queue_until_their_time_has_come() -> None:
    table = Table(background_s=60.0)
    table.load(1, A)
    table.do(Arrived(2, C, background=True))
    table.now_s = 10.0
    table.do(Arrived(3, B))
    assert [table.policy.position(n) for n in (3, 2)] == [1, 2]
    assert table.do(Released(1)) == [StopEngine(1, "evicted")]
    assert table.do(Exited(1, EngineDiedError("stopped"))) == [StartEngine(2, B)]
    table.now_s = 70.0
    table.do(Arrived(4, A))
    assert [table.policy.position(n) for n in (2, 3, 4)] == [1, 2, 3]


def test_a_background_request_makes_no_busy_engine_run_dry() -> None:
    table = Table(background_s=60.0)
    table.load(1, A)
    assert table.do(Arrived(2, B, background=True)) == []
    assert table.do(Arrived(3, A)) == [Grant(3, 1)]
    table.now_s = 61.0
    table.do(Ticked())
    assert table.do(Arrived(4, A)) == [], "now its turn has come: A takes nothing new"
    table.do(Released(1))
    assert table.do(Released(3)) == [StopEngine(1, "evicted")]


def test_a_load_longer_than_the_keep_alive_is_no_idle_time() -> None:
    table = Table()
    assert table.do(Arrived(1, A, 1.0)) == [StartEngine(1, A)]
    table.now_s = 100.0
    assert table.do(Ticked()) == []
    assert table.policy.next_deadline_s() is None
    assert table.do(Loaded(1)) == [Grant(1, 1)]
    table.do(Released(1))
    assert table.policy.next_deadline_s() == 101.0

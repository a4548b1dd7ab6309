"""F4: the engine breaks its protocol in an answer, in the load, or in what it says it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import Rig, runs
from tests.e2e.faults.talk import Starts, Talk, models_named, random_word
from tests.fakes.engine import FakeScript

LANES = 5
LIES = (
    "hello_garbage",
    "hello_version",
    "hello_half",
    "info_version",
    "other_model",
    "health_garbage",
    "half_line",
    "huge_line",
    "garbage",
    "bad_utf8",
    "no_finish",
    "unknown_event",
    "wrong_type",
    "http_garbage",
    "not_ready",
)
GOOD = FakeScript(token_s=0.001)


@runs
def test_a_lying_engine_is_replaced_and_its_client_is_told(rig: Rig, num_points: int) -> None:
    lies = [rig.rng.choice(LIES) for _ in range(num_points)]
    lying = {f"m{n}": (FakeScript(lie=lie, token_s=0.001), GOOD) for n, lie in enumerate(lies)}
    starts = Starts(lying, GOOD)
    talks = [Talk(model, random_word(rig.rng)) for model in lying]
    with (
        rig.inside(starts, models_named(num_points), max_loaded_models=LANES) as manager,
        ThreadPoolExecutor(LANES) as pool,
    ):

        def one_lie(talk: Talk, lie: str) -> None:
            answer = talk.ask(manager.url)
            assert not answer.complete, (lie, answer.lines)
            assert "protocol" in answer.error or "could not be" in answer.error, (lie, answer.error)
            assert talk.ask(manager.url).complete, lie
            assert starts.count(talk.model) == 2, lie

        list(pool.map(one_lie, talks, lies))
        invariants.answers_when_healthy(manager.url, "m0")

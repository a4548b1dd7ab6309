"""What real clients sent to us once, sent again: same status, answers that their SDKs can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftman.config import EngineSettings
from tests.clients.replay import Replay, load
from tests.clients.scripted import MODELS, SCRIPT, named
from tests.ftman.gateway.serving import Manager, make_config, managing

FIXTURES = Path(__file__).resolve().parents[1] / "data" / "clients"
RECORDINGS = sorted(FIXTURES.glob("*.json"))
SDKS = {"ollama-python", "ollama-js", "openai-python", "openai-js", "anthropic-python"}


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager with a model of every name that a recording was answered with."""
    requests = [request for path in RECORDINGS for request in load(path)]
    answered = {request.model for request in requests if request.status == 200 and request.model}
    known = {tiny.name.removesuffix(":latest") for tiny in MODELS}
    others = sorted({name.removesuffix(":latest") for name in answered} - known)
    models = MODELS + named([f"{name}:latest" for name in others])
    # Agents send more than a default window holds.
    engine = EngineSettings(num_parallel=2, threads=1, adopt=False, context_length=1 << 18)
    home = tmp_path_factory.mktemp("replay")
    config = make_config(home, max_loaded_models=len(models), engine=engine)
    with managing(config.paths.home, SCRIPT, models, config=config) as running:
        yield running


def test_the_recordings_are_there() -> None:
    assert {path.stem for path in RECORDINGS} >= SDKS


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_client_is_answered_in_its_types(manager: Manager, path: Path) -> None:
    replay = Replay(manager.http)
    requests = load(path)
    assert requests
    for request in requests:
        replay.send(request)

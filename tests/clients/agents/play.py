"""The scene, step by step, and what must be true after it: on disk, in requests, in our log."""

from __future__ import annotations

import json

from tests.clients.agents import scene
from tests.clients.agents.running import Stage


def play(stage: Stage) -> None:
    """Both turns.   Raises: AssertionError saying what is not as it must be."""
    agent = stage.agent
    said = stage.run(agent.first, scene.FIRST_PROMPT)
    written = stage.work / scene.WRITTEN_FILE
    assert written.exists(), f"{written.name} was not written; the agent said: {said[-2000:]}"
    assert written.read_text() == scene.COPIED
    _check_rounds(stage)
    before = len(stage.turns)
    said = stage.run(agent.second, scene.SECOND_PROMPT)
    later = [json.dumps(turn.body) for turn in stage.turns[before:]]
    asked = [text for text in later if scene.SECOND in text]
    assert asked, f"the second prompt never came; the agent said: {said[-2000:]}"
    if agent.continues:
        assert scene.FIRST in asked[-1], "the second turn does not continue the first"
        assert scene.WRITTEN in asked[-1] or not agent.tools
    assert scene.SECOND_ANSWER in _plain(said), said[-2000:]
    _check_answers(stage)


def _check_rounds(stage: Stage) -> None:
    """The request after each tool call holds what the tool gave, and what we said ourselves."""
    if not stage.agent.tools:
        return
    bodies = [json.dumps(turn.body) for turn in stage.turns]
    assert any(scene.FIRST in body and scene.FOUND not in body for body in bodies)
    last = bodies[-1]
    assert scene.FOUND in last, "the result of the first tool never came back"
    assert scene.WRITTEN in last, "the second call never came back"
    assert "I read the file." in last, "the text before the first call was lost"


def _check_answers(stage: Stage) -> None:
    """Nothing was refused, no route was missing, nothing failed inside."""
    wrong = [f"{e.method} {e.target} {e.status}: {e.answer[:400]}" for e in stage.exchanges
             if e.status >= 400]  # fmt: skip
    assert not wrong, "\n".join(wrong)
    assert "Traceback" not in stage.manager.log, stage.manager.log[-4000:]
    assert " failed: " not in stage.manager.log, stage.manager.log[-4000:]


def _plain(said: str) -> str:
    """Without the line breaks that a terminal program puts in."""
    return " ".join(said.split())

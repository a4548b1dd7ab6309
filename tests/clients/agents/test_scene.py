"""The scene itself, with the official client in the place of an agent: each step has its answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ftman.config import EngineSettings
from tests.clients.agents import scene
from tests.clients.agents.agents import AGENTS, Agent
from tests.clients.agents.scene import ToolUse
from tests.ftman.gateway.serving import Tiny, make_config, managing

READ = ToolUse("read", {"path": "/x/number.txt"})
WRITE = ToolUse("write", {"path": "/x/copy.txt", "content": scene.COPIED})
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("read", "write")
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a manager that plays the scene."""
    engine = EngineSettings(num_parallel=2, threads=1, adopt=False, context_length=1 << 16)
    config = make_config(tmp_path_factory.mktemp("scene"), engine=engine)
    model = Tiny(f"{scene.MODEL}:latest", jinja=scene.TEMPLATE, context=scene.CONTEXT_TOKENS)
    with managing(config.paths.home, scene.by_tools(READ, WRITE), (model,), config=config) as here:
        yield openai.OpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, messages: list[Any]) -> Any:
    """The next message of the model."""
    reply = client.chat.completions.create(model=scene.MODEL, messages=messages, tools=TOOLS)
    return reply.choices[0].message


def test_every_step_is_answered_in_its_turn(client: openai.OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": scene.FIRST_PROMPT}]
    for text, use, result in (
        ("I read the file.", READ, f"{scene.FOUND}\n"),
        (None, WRITE, "written"),
    ):
        said = ask(client, turns)
        (call,) = said.tool_calls
        assert call.function.name == use.name
        assert said.content == text
        assert said.reasoning_content
        turns += [said.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": result}]
    said = ask(client, turns)
    assert (said.content, said.tool_calls) == (scene.FIRST_ANSWER, None)
    turns += [said.to_dict(), {"role": "user", "content": scene.SECOND_PROMPT}]
    assert ask(client, turns).content == scene.SECOND_ANSWER


def test_the_second_file_cannot_be_written_without_the_first(client: openai.OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": scene.FIRST_PROMPT}]
    said = ask(client, turns)
    lost = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": ""}
    again = ask(client, [*turns, said.to_dict(), lost])
    assert [call.function.name for call in again.tool_calls] == ["read"]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_every_agent_is_pinned_and_has_the_whole_scene(agent: Agent, tmp_path: Path) -> None:
    assert agent.package.rpartition("==" if agent.python else "@")[2][0].isdigit()
    assert "{prompt}" in agent.first
    assert "{prompt}" in agent.second
    if agent.read and agent.write:
        said = scene.by_tools(agent.read(tmp_path), agent.write(tmp_path)).replies
        assert len(said) == 4

"""The official anthropic client, unpatched, against a manager process with a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, TextBlock

from ftman.config import Paths
from tests.e2e.processes import manager_process
from tests.ftman.gateway.serving import install

USER: list[MessageParam] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[anthropic.Anthropic]:
    """A client of a manager with a scripted engine that says "Hello world"."""
    home = tmp_path_factory.mktemp("home")
    install(Paths(home, home / "models"))
    with manager_process(home) as manager:
        yield anthropic.Anthropic(base_url=manager.url, api_key="none", max_retries=0, timeout=60)


def test_whole(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="tiny", max_tokens=50, messages=USER)
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "Hello world"}
    ]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == 11
    assert message.usage.input_tokens > 0
    assert message._request_id
    assert type(message).model_validate(message.to_dict()) == message


def test_streamed_raw_and_through_the_helper(client: anthropic.Anthropic) -> None:
    raw = client.messages.create(model="tiny", max_tokens=50, messages=USER, stream=True)
    assert [event.type for event in raw if event.type != "content_block_delta"] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    with client.messages.stream(model="tiny", max_tokens=4, messages=USER) as stream:
        assert "".join(stream.text_stream) == "Hell"
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    (block,) = message.content
    assert isinstance(block, TextBlock)
    assert block.text == "Hell"
    assert message.usage.output_tokens == 4


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="tiny", max_tokens=50, messages=USER, stop_sequences=["wor"]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "wor")


def test_counting_is_what_the_same_request_costs(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": USER, "system": "Be brief."}
    counted = client.messages.count_tokens(**fields).input_tokens
    used = client.messages.create(max_tokens=1, **fields).usage
    assert counted == used.input_tokens + (used.cache_read_input_tokens or 0)
    assert counted > client.messages.count_tokens(model="tiny", messages=USER).input_tokens


def test_models(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert model.id == "tiny:latest"
    assert model.lifecycle == "active"
    assert client.models.retrieve("tiny").max_input_tokens == 512


def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="model 'nope' not found") as missing:
        client.messages.create(model="nope", max_tokens=5, messages=USER)
    assert missing.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nope")
    long: list[MessageParam] = [{"role": "user", "content": "x" * 600}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 512"):
        client.messages.create(model="tiny", max_tokens=5, messages=long, stream=True)
    assert client.messages.count_tokens(model="tiny", messages=long).input_tokens > 600
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="tiny", max_tokens=5, messages=[])

"""/v1/embeddings: forms of input and of answer."""

from __future__ import annotations

import base64
import struct
from typing import Any

import openai
import pytest

from tests.ftman.gateway.openai.scripted import ScriptedService, ask, with_sdk

PATH = "/v1/embeddings"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_forms_of_input(given: Any, seen: Any) -> None:
    service = ScriptedService()
    reply = ask(service, PATH, {"model": "tiny", "input": given})
    assert service.asked[0].inputs == seen
    assert service.asked[0].truncate is False
    value = reply.json()
    assert [item["index"] for item in value["data"]] == list(range(len(seen)))
    assert {item["object"] for item in value["data"]} == {"embedding"}
    assert value["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


@pytest.mark.parametrize("given", [None, [], [[]], [1, "a"], [1.5], {"a": 1}, 5, ["a"] * 2049])
def test_bad_input(given: Any) -> None:
    reply = ask(ScriptedService(), PATH, {"model": "tiny", "input": given})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(
    "more", [{"encoding_format": "hex"}, {"dimensions": 0}, {"dimensions": "x"}]
)
def test_bad_wishes(more: dict[str, Any]) -> None:
    reply = ask(ScriptedService(), PATH, {"model": "tiny", "input": "a"} | more)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(more)))


def test_base64_and_numbers_are_the_same_vector() -> None:
    body = {"model": "tiny", "input": ["a", "b"]}
    numbers = ask(ScriptedService(), PATH, body).json()["data"]
    coded = ask(ScriptedService(), PATH, body | {"encoding_format": "Base64"}).json()["data"]
    for one, other in zip(numbers, coded, strict=True):
        data = base64.b64decode(other["embedding"])
        assert list(struct.unpack(f"<{len(data) // 4}f", data)) == one["embedding"]


def test_the_sdk_asks_for_base64_by_itself() -> None:
    async def use(client: openai.AsyncOpenAI) -> Any:
        return await client.embeddings.create(model="tiny", input=["a", "b"], dimensions=3)

    service = ScriptedService()
    made = with_sdk(service, use)
    assert [item.embedding for item in made.data] == [[0.5] * 3, [1.5] * 3]
    assert service.asked[0].dimensions == 3

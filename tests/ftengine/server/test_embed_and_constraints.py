"""Embeddings and constraints through a real engine process."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest

from ftengine.protocol import EmbedReply, ErrorEvent, FinishEvent, TokenEvent, decode
from tests.ftengine.server.engine_process import RunningEngine, generate


def embed_body(*lengths: int, **more: Any) -> dict[str, Any]:
    inputs = [[3 + (size * 7 + i * 13) % 290 for i in range(size)] for size in lengths]
    return {"request_id": "e", "inputs": inputs, **more}


def test_vectors_come_back_for_every_input(shared: RunningEngine) -> None:
    async def scenario() -> None:
        await shared.ready()
        async with shared.client() as client:
            answer = await client.post("/embed", json=embed_body(5, 40, 5, dimensions=16))
            assert answer.status_code == 200
            reply = decode(EmbedReply, answer.content)
            plain = decode(
                EmbedReply,
                (await client.post("/embed", json=embed_body(5, normalize=False))).content,
            )
        rows = [np.frombuffer(base64.b64decode(text), "<f4") for text in reply.vectors]
        assert [row.shape for row in rows] == [(16,)] * 3
        assert (reply.dimensions, reply.prompt_tokens) == (16, 50)
        assert np.array_equal(rows[0], rows[2])
        assert np.linalg.norm(rows[1]) == pytest.approx(1, abs=1e-6)
        whole = np.frombuffer(base64.b64decode(plain.vectors[0]), "<f4")[:16]
        assert rows[0] == pytest.approx(whole / np.linalg.norm(whole), abs=1e-6)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (embed_body(257), 400, "context_length_exceeded", "257 tokens and the context holds 256"),
        ({"request_id": "e", "inputs": []}, 400, "bad_request", "inputs"),
        ({"request_id": "e", "inputs": [[9999]]}, 400, "bad_request", "9999"),
        (embed_body(3, pooling="max"), 400, "bad_request", "mean, last, cls"),
        ({"request_id": "e", "inputs": [[3]] * 40_000}, 413, "too_large", "8000000"),
    ],
)
def test_bad_embedding_requests_get_one_clear_error(
    body: dict[str, Any], status: int, code: str, words: str, shared: RunningEngine
) -> None:
    async def scenario() -> None:
        await shared.ready()
        async with shared.client() as client:
            answer = await client.post("/embed", json=body)
        error = decode(ErrorEvent, answer.content)
        assert (answer.status_code, error.code) == (status, code)
        assert words in error.message

    asyncio.run(scenario())


def test_leaving_client_aborts_its_embeddings(shared: RunningEngine) -> None:
    async def scenario() -> None:
        await shared.ready()
        before = await shared.metric("aborted_total")
        computed = await shared.metric("prompt_tokens_total")
        async with shared.client() as client:
            asking = asyncio.create_task(client.post("/embed", json=embed_body(*[250] * 2000)))
            while await shared.metric("prompt_tokens_total") == computed:
                await asyncio.sleep(0.005)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        for _ in range(200):
            if await shared.metric("aborted_total") == before + 1:
                break
            await asyncio.sleep(0.02)
        assert await shared.metric("aborted_total") == before + 1
        assert await shared.metric("waiting") == 0
        assert await shared.metric("kv_pages_free") == await shared.metric("kv_pages")

    asyncio.run(scenario())


def constrained(kind: str, text: str = "") -> dict[str, Any]:
    return {
        "request_id": "c",
        "token_ids": [5, 6, 7],
        "sampling": {"temperature": 1.0, "seed": 1},
        "max_tokens": 200,
        "constraint": {"kind": kind, "text": text},
    }


def test_constrained_reply_streams_and_stops(shared: RunningEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema["additionalProperties"] = False

    async def scenario() -> None:
        await shared.ready()
        async with shared.client() as client:
            request = constrained("json_schema", json.dumps(schema))
            events = [event async for event in generate(client, request)]
        assert sum(isinstance(event, TokenEvent) for event in events) >= 3
        finish = events[-1]
        assert isinstance(finish, FinishEvent)
        assert (finish.reason, finish.stop_token_id) == ("stop", None)
        assert await shared.metric("constraint_mask_seconds_total") > 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_body", "code"),
    [
        (constrained("regex", "(a"), "bad_constraint"),
        (constrained("json_schema", "{"), "bad_constraint"),
        (constrained("gbnf", "root ::= a"), "bad_request"),
    ],
)
def test_bad_constraint_is_a_400_before_any_token(
    request_body: dict[str, Any], code: str, shared: RunningEngine
) -> None:
    async def scenario() -> None:
        await shared.ready()
        async with shared.client() as client:
            answer = await client.post("/generate", json=request_body)
        assert answer.status_code == 400
        assert decode(ErrorEvent, answer.content).code == code

    asyncio.run(scenario())

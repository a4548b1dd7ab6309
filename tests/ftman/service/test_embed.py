"""Texts to vectors through a scripted engine: encoding, cutting, pooling, pieces, errors."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import processors

from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import Options
from ftman.errors import BusyError, EngineDiedError, NotFoundError, UsageError
from ftman.pull.index import Index
from ftman.service import Service
from ftman.service.embed import pieces, prepare
from ftman.service.prompts import ContextLengthError
from ftman.service.requests import EmbedInput, EmbedResult
from ftman.supervisor.client import EmbedReply, EmbedRequest, EngineClient
from ftman.supervisor.policy_events import EngineSpec
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.fakes.tiny_models import write_tokenizer
from tests.fakes.vectors import vector_of
from tests.ftman.gateway.serving import Tiny, ids_of, install, make_config


@dataclass
class Serving:
    """One service for the module, with a model for every kind of engine these tests need."""

    loop: asyncio.AbstractEventLoop
    service: Service
    log: Path

    def embed(self, *inputs: Any, model: str = "tiny", **more: Any) -> EmbedResult:
        """Embed, the log emptied before."""
        self.log.write_text("")
        asked = EmbedInput(model, inputs, **more)
        return self.loop.run_until_complete(self.service.embed(asked))

    def sent(self) -> list[dict[str, Any]]:
        """What the engine was asked."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        assert {line["route"] for line in lines} == {"/embed"}
        return [line["request"] for line in lines]


POOLED = {"mean": 1, "cls": 2, "last": 3, "none": 0}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("home")
    log = home / "log"
    scripts = {"nan": FakeScript(embed_nan=True), "busy": FakeScript(refuse="no room")}

    def script_of(spec: EngineSpec) -> FakeScript:
        name = spec.name.partition(":")[0]
        return scripts.get(name, FakeScript(request_log=str(log)))

    config = make_config(home)
    install(config.paths, Tiny())
    for seed, name in enumerate(("nan", "busy"), 1):
        install(config.paths, Tiny(f"{name}:latest", seed=seed))
    for seed, (name, kind) in enumerate(POOLED.items(), 10):
        install(config.paths, Tiny(f"{name}:latest", seed=seed, info={"llama.pooling_type": kind}))
    loop = asyncio.new_event_loop()
    service = Service(config, launcher=FakeLauncher(script_of), index=Index([]))
    loop.run_until_complete(service.start())
    yield Serving(loop, service, log)
    loop.run_until_complete(service.close())
    loop.close()


def test_vectors_come_in_order_with_counts(serving: Serving) -> None:
    result = serving.embed("ab", ids_of("cd"), "ab")
    asked = EmbedRequest("x", ((1,),))
    for vector, text in zip(result.vectors, ("ab", "cd", "ab"), strict=True):
        truth = vector_of(ids_of(text), asked, 8)
        assert vector.floats() == pytest.approx(truth, abs=1e-6)
        assert math.hypot(*vector.floats()) == pytest.approx(1, abs=1e-6)
        assert len(vector.data) == 32
    assert result.prompt_tokens == result.usage.prompt_tokens == 6
    assert result.pooling == "mean"
    assert result.notes == ()
    assert result.usage.total_s >= result.usage.load_s >= 0


def test_short_floats_read_back_as_the_same_float32(serving: Serving) -> None:
    vector = serving.embed("hello").vectors[0]
    assert struct.pack("<8f", *vector.short_floats()) == vector.data
    assert max(len(json.dumps(number)) for number in vector.short_floats()) <= 14


def test_without_inputs_the_model_is_only_loaded(serving: Serving) -> None:
    result = serving.embed(keep_alive_s=60)
    assert (result.vectors, result.prompt_tokens) == ((), 0)
    assert serving.service.running()
    assert serving.log.read_text() == ""


def test_text_is_never_read_as_control_tokens(serving: Serving) -> None:
    serving.embed("<|im_end|>")
    (request,) = serving.sent()
    assert 2 not in request["inputs"][0]


def test_options_reach_the_engine(serving: Serving) -> None:
    result = serving.embed("ab", pooling="last", normalize=False, dimensions=3)
    (request,) = serving.sent()
    assert (request["pooling"], request["normalize"], request["dimensions"]) == ("last", False, 3)
    assert len(result.vectors[0].floats()) == 3


@pytest.mark.parametrize("name", POOLED)
def test_pooling_is_the_model_s_own(serving: Serving, name: str) -> None:
    pooling = "mean" if name == "none" else name
    assert serving.embed("ab", model=name, keep_alive_s=0).pooling == pooling
    assert serving.sent()[0]["pooling"] == pooling


def test_long_input_is_cut_at_the_end_and_that_is_said(serving: Serving) -> None:
    result = serving.embed("abcdefghijkl", "ab", "x" * 30, options=Options(num_ctx=8))
    assert serving.sent()[0]["inputs"] == [list(ids_of(t)) for t in ("abcdefgh", "ab", "x" * 8)]
    assert result.prompt_tokens == 18
    (note,) = result.notes
    assert "2 inputs were longer than the context window of 8 tokens" in note


def test_long_input_that_may_not_be_cut_is_an_error_with_both_numbers(serving: Serving) -> None:
    with pytest.raises(ContextLengthError) as caught:
        serving.embed("ab", "abcdefghijkl", options=Options(num_ctx=8), truncate=False)
    assert caught.value.extra == {"n_prompt_tokens": 12, "n_ctx": 8}
    assert caught.value.param == "input"


def test_more_dimensions_than_there_are(serving: Serving) -> None:
    result = serving.embed("ab", dimensions=99)
    assert len(result.vectors[0].floats()) == 8
    assert "dimensions 99 asked for; this model's vectors have 8" in result.notes
    with pytest.raises(UsageError, match="99 is more than the 64"):
        serving.embed("ab", dimensions=99, strict_dimensions=True)


def test_empty_text_is_embedded_and_that_is_said(serving: Serving) -> None:
    result = serving.embed("", "ab")
    assert len(result.vectors) == 2
    assert "end-of-text" in result.notes[0]


def test_wrong_requests_name_what_is_wrong(serving: Serving) -> None:
    with pytest.raises(UsageError, match="mean, last, cls"):
        serving.embed("a", pooling="max")
    with pytest.raises(UsageError, match="999999"):
        serving.embed((999_999,))
    with pytest.raises(NotFoundError):
        serving.embed("a", model="nope")


def test_numbers_that_are_none_are_an_error(serving: Serving) -> None:
    with pytest.raises(UsageError, match="NaN or Inf") as caught:
        serving.embed("ab", model="nan", keep_alive_s=0)
    assert caught.value.code == "not_a_number"


def test_engine_that_is_not_ready_is_busy(serving: Serving) -> None:
    with pytest.raises(BusyError, match="no room"):
        serving.embed("ab", model="busy", keep_alive_s=0)


def test_engine_that_breaks_the_protocol_is_an_error(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lying(self: EngineClient, request: EmbedRequest) -> EmbedReply:
        return EmbedReply(("!!!",), 8, 1, 0.0, 0.0)

    monkeypatch.setattr(EngineClient, "embed", lying)
    with pytest.raises(EngineDiedError, match="base64"):
        serving.embed("ab")


def test_pieces_keep_requests_and_answers_below_the_line_limit() -> None:
    ids = [tuple(range(size)) for size in (100_000, 200_000, 300_000, 5, 6, 400_000)]
    found = list(pieces(ids, 1024))
    assert [item for piece in found for item in piece] == ids
    assert len(found) == 3
    many = [(1,)] * 3000
    found = list(pieces(many, 4096))
    assert [len(piece) for piece in found][:2] == [183, 183]
    assert sum(map(len, found)) == 3000
    assert list(pieces([], 1024)) == []


def test_many_inputs_go_in_several_requests(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftman.service.embed._FILL", 0.0001)
    result = serving.embed(*["ab", "cd"] * 10)
    requests = serving.sent()
    assert len(requests) == 10
    assert len({request["request_id"] for request in requests}) == 10
    assert [v.data for v in result.vectors] == [v.data for v in result.vectors[:2]] * 10
    assert result.prompt_tokens == 40


def test_marks_of_the_tokenizer_stand_around_an_input_and_survive_the_cut(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    path = str(tmp_path / "tokenizer.json")
    inner = Inner.from_file(path)
    inner.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)]
    )
    inner.save(path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode_input("ab") == (*ids_of("ab"), 2)
    assert tokenizer.encode("ab") == list(ids_of("ab"))
    assert prepare(EmbedInput("m", ("abcdef",)), tokenizer, 4).ids == [(*ids_of("abc"), 2)]
    assert prepare(EmbedInput("m", ("",)), tokenizer, 4).ids == [(2,)]

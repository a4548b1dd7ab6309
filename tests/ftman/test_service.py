"""Use cases without HTTP: which option counts, which window, what is cut, what is let go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftman.catalog.model import Model, ModelDetails
from ftman.chat.template import JinjaTemplates
from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import ChatRequest, Finish, Message, Options, Prompt, TextDelta
from ftman.config import EngineSettings
from ftman.errors import NotFoundError, UsageError
from ftman.gateway.access import is_loopback
from ftman.names import parse_name
from ftman.pull.index import Index
from ftman.service import Service
from ftman.service.engines import kv_bytes_per_token
from ftman.service.options import (
    NATIVE,
    bad_option,
    choose_context,
    generation_defaults,
    options_of_parameters,
    own_options,
    sampling_of,
)
from ftman.service.prompts import ContextLengthError, chat_prompt, cut_tokens
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.fakes.tiny_models import write_tokenizer
from tests.ftman.gateway.serving import Tiny, ids_of, install, make_config


def model_of(folder: Path, **changes: Any) -> Model:
    """A model that exists only as far as these tests look."""
    values: dict[str, Any] = {
        "name": parse_name("tiny"),
        "digest": "",
        "modified_wall_s": 0.0,
        "size_bytes": 0,
        "details": ModelDetails(context_length=8192),
        "ftw_id": "f" * 64,
        "ftw_path": folder,
        "template": "",
        "jinja_path": folder / "chat_template.jinja",
        "system": "",
        "parameters": {},
        "licenses": (),
        "messages": (),
        "capabilities": ("completion",),
        "parent": "",
        "load_bytes": 1000,
        "kv_bytes_per_token": 1000,
        "eos_ids": (2,),
    }
    return Model(**(values | changes))


def test_request_wins_over_parameter_over_published_over_ollamas_default(tmp_path: Path) -> None:
    published = {"temperature": 0.3, "top_k": 7, "top_p": 0.5, "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(published))
    model = model_of(tmp_path, parameters={"temperature": 0.2, "top_k": 9, "stop": "X"})
    options = Options(temperature=0.1).over(own_options(model)).over(NATIVE)
    assert (options.temperature, options.top_k, options.top_p) == (0.1, 9, 0.5)
    assert (options.repeat_penalty, options.min_p, options.stop) == (1.1, 0.0, ("X",))


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"do_sample": false, "top_k": 3}'])
def test_published_defaults_may_be_missing_or_broken(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    assert generation_defaults(model_of(tmp_path)) == Options()


@pytest.mark.parametrize("do_sample", [None, False])
def test_tokens_that_the_authors_suppress_reach_the_engine(
    tmp_path: Path, do_sample: bool | None
) -> None:
    published = {"do_sample": do_sample, "suppress_tokens": [200020, 7, -1]}
    (tmp_path / "generation_config.json").write_text(json.dumps(published))
    own = own_options(model_of(tmp_path))
    sampling = sampling_of(Options(temperature=0.1, logit_bias=((7, 9.0),)).over(own))
    assert (sampling.suppress_tokens, sampling.logit_bias) == ((200020, 7), ((7, 9.0),))


@pytest.mark.parametrize("never", ["7", [7, "8"], [True], {"7": 1}, [], None, [-1]])
def test_a_broken_list_of_suppressed_tokens_is_none(tmp_path: Path, never: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"suppress_tokens": never}))
    assert generation_defaults(model_of(tmp_path)) == Options()


def test_what_the_authors_published_counts_when_the_disk_is_gone(tmp_path: Path) -> None:
    service = Service(make_config(tmp_path / "home"), launcher=FakeLauncher(FakeScript()))
    model, path = model_of(tmp_path), tmp_path / "generation_config.json"
    path.write_text(json.dumps({"top_k": 7, "suppress_tokens": [3]}))
    published = service.own_options(model)
    assert published.top_k == 7
    path.unlink()
    assert service.own_options(model) == published
    assert service._engines.settings(model, Options()).options.suppress_tokens == (3,)


def test_a_parameter_of_a_wrong_type_is_ollamas_500() -> None:
    with pytest.raises(UsageError) as caught:
        options_of_parameters({"num_ctx": "big"})
    assert (caught.value.status, caught.value.message) == (
        500,
        'option "num_ctx" must be of type integer',
    )
    assert bad_option("stop", "of an array of strings").message == (
        'option "stop" must be of an array of strings'
    )


@pytest.mark.parametrize(
    ("asked", "configured", "running", "window"),
    [
        (None, 0, 0, 8192),
        (None, 2048, 0, 2048),
        (None, 0, 1024, 8192),
        (512, 2048, 1024, 512),
        (99999, 0, 0, 8192),
        (1, 0, 0, 4),
        (None, 99999, 0, 8192),
        (512, 99999, 0, 512),
    ],
)
def test_window(
    tmp_path: Path, asked: int | None, configured: int, running: int, window: int
) -> None:
    found, note = choose_context(
        asked,
        model_of(tmp_path),
        configured=configured,
        running=running,
        num_parallel=4,
        memory_bytes=64 << 30,
    )
    assert found == window
    assert ("99999" in note) is ((asked or configured) == 99999)


def test_default_window_shrinks_to_the_memory_there_is(tmp_path: Path) -> None:
    model = model_of(tmp_path, details=ModelDetails(context_length=262144))
    sizes = [
        choose_context(None, model, configured=0, running=0, num_parallel=4, memory_bytes=memory)[0]
        for memory in (1 << 40, 300_000_000, 1000)
    ]
    assert sizes == [32768, 16384, 4096]
    roomy, _ = choose_context(
        None,
        model,
        configured=0,
        running=0,
        num_parallel=4,
        memory_bytes=300_000_000,
        kv_bytes_per_token=model.kv_bytes_per_token // 2,
    )
    assert roomy == 32768


@pytest.mark.parametrize(
    ("kept", "compute", "q8", "size"),
    [
        ("auto", "bfloat16", 532, 1000),
        ("auto", "float32", 532, 2000),
        ("bf16", "float32", 532, 1000),
        ("f32", "bfloat16", 532, 2000),
        ("q8_0", "bfloat16", 532, 532),
        ("q8_0", "float32", 532, 532),
        ("q8_0", "bfloat16", 0, 1000),  # installed before it was told
        ("q8_0", "float32", 1000, 2000),  # nothing of it can be q8_0
    ],
)
def test_memory_for_context_follows_how_it_is_kept(
    tmp_path: Path, kept: str, compute: str, q8: int, size: int
) -> None:
    model = replace(model_of(tmp_path), kv_q8_0_bytes_per_token=q8)
    engine = EngineSettings(kv_cache_type=kept, compute=compute)
    assert kv_bytes_per_token(model, engine) == size


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (Options(temperature=-1), "temperature", 0.0),
        (Options(top_p=0), "top_p", 1e-6),
        (Options(top_p=5), "top_p", 1.0),
        (Options(top_k=-3), "top_k", 0),
        (Options(seed=-1), "seed", None),
        (Options(seed=2**63 + 5), "seed", 5),
        (Options(repeat_last_n=-9), "repeat_last_n", -1),
    ],
)
def test_sampling_takes_what_ollama_takes(options: Options, name: str, value: Any) -> None:
    assert getattr(sampling_of(options), name) == value


def test_sampling_refuses_by_name() -> None:
    with pytest.raises(UsageError, match="repeat_penalty"):
        sampling_of(Options(repeat_penalty=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a ChatML template."""
    path = tmp_path_factory.mktemp("ftw")
    write_tokenizer(path)
    return path


def prompt_of(
    folder: Path, messages: Sequence[Message], window: int, *, strict: bool = False
) -> tuple[Prompt, tuple[str, ...]]:
    """Render in a window."""

    async def work() -> tuple[Prompt, tuple[str, ...]]:
        templates = JinjaTemplates()
        try:
            request = ChatRequest("tiny", tuple(messages), strict_length=strict)
            tokenizer = Tokenizer.load(folder)
            fitted = await chat_prompt(
                request, model_of(folder), templates, tokenizer, window, 4, {}
            )
            return fitted.prompt, fitted.notes
        finally:
            await templates.close()

    return asyncio.run(work())


def test_as_few_of_the_oldest_messages_as_it_takes_are_left_out(folder: Path) -> None:
    history = [Message("system", "SYS")]
    history += [Message("user", f"{letter}" * 20) for letter in "abcdef"]
    whole, notes = prompt_of(folder, history, 10_000)
    assert notes == ()
    for window in range(80, len(whole.token_ids), 17):
        prompt, notes = prompt_of(folder, history, window)
        assert len(prompt.token_ids) < window
        assert "SYS" in prompt.text
        assert "f" * 20 in prompt.text
        dropped = int(notes[0].partition(": the ")[2].split()[0])
        kept = [letter for letter in "abcdef" if letter * 20 in prompt.text]
        assert kept == list("abcdef")[dropped:]
        # One message more would not have fitted.
        fuller = [history[0], *history[dropped:]]
        assert len(prompt_of(folder, fuller, 10_000)[0].token_ids) >= window


def test_a_strict_request_is_refused_with_both_numbers(folder: Path) -> None:
    with pytest.raises(ContextLengthError) as caught:
        prompt_of(folder, [Message("user", "x" * 100)], 50, strict=True)
    assert caught.value.extra["n_ctx"] == 50
    assert f"{caught.value.extra['n_prompt_tokens']} tokens > 50 maximum" in caught.value.message


@pytest.mark.parametrize("window", [4, 5, 16, 64, 99])
def test_cutting_keeps_the_first_and_the_newest_tokens(folder: Path, window: int) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tuple(range(3, 103))
    fitted = cut_tokens(Prompt(ids, (5,), ""), tokenizer, window, 4)
    kept = fitted.prompt.token_ids
    assert 0 < len(kept) < window
    keep = min(4, window // 2)
    assert kept[:keep] == ids[:keep]
    assert kept[keep:] == ids[len(ids) - (len(kept) - keep) :]
    assert len(kept) == window - max((window - keep) // 2, 1)
    assert "cut out" in fitted.notes[0]


def test_a_service_answers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    engine = EngineSettings(num_parallel=2, threads=1, adopt=False, park_bytes=1000)
    config = make_config(tmp_path, engine=engine)
    install(config.paths, Tiny(system="Be brief."))
    launcher = FakeLauncher(FakeScript(tokens=ids_of("ok")))

    async def work() -> tuple[str, Finish]:
        service = Service(config, launcher=launcher, index=Index([]))
        await service.start()
        try:
            request = ChatRequest("tiny", (Message("user", "Hi"),), keep_alive_s=0)
            events = [event async for event in service.chat(request)]
            await service.unload("tiny")
            text = "".join(e.text for e in events if isinstance(e, TextDelta))
            last = events[-1]
            assert isinstance(last, Finish)
            with pytest.raises(NotFoundError):
                await service.load("nope", None, Options())
            return text, last
        finally:
            await service.close()
            assert service.running() == []

    text, finish = asyncio.run(work())
    assert (text, finish.reason, finish.usage.completion_tokens) == ("ok", "stop", 2)
    (spec,) = launcher.launched
    assert spec.context_tokens == 512
    assert spec.need_bytes == 4096 + 64 * 512 * 2 + 1000  # weights, KV cache, parked
    assert is_loopback(config.host)


def test_an_engine_with_a_larger_window_serves_and_one_small_wish_is_not_everybody_s(
    tmp_path: Path,
) -> None:
    config = make_config(tmp_path)
    install(config.paths)
    launcher = FakeLauncher(FakeScript(tokens=ids_of("ok")))

    async def work() -> None:
        service = Service(config, launcher=launcher, index=Index([]))
        await service.start()
        try:
            for num_ctx in (256, None, 256, 128):
                await service.load("tiny", 60, Options(num_ctx=num_ctx))
        finally:
            await service.close()

    asyncio.run(work())
    # 256 as asked; the one without a wish gets the model's 512; both small ones are served by that
    assert [spec.context_tokens for spec in launcher.launched] == [256, 512]

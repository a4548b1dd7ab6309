"""Streaming equals decoding at once, for every decoder, broken bytes included."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftman.chat.detokenize import Detokenizer
from ftman.chat.tokenizer import Tokenizer
from ftman.errors import UnsupportedError


def streamed(tokenizer: Tokenizer, ids: list[int], chunk: int, special: bool) -> str:
    stream = tokenizer.stream(special=special)
    parts = [stream.feed(ids[at : at + chunk]) for at in range(0, len(ids), chunk)]
    return "".join(parts) + stream.flush()


def test_streaming_random_ids_equals_decoding_them_at_once(tokenizer: Tokenizer) -> None:
    rng = random.Random(5)
    for length in [*range(1, 30), 200]:
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(length)]
        for special in (False, True):
            whole = tokenizer.decode(ids, special=special)
            assert streamed(tokenizer, ids, 1, special) == whole
            assert streamed(tokenizer, ids, 7, special) == whole


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.lists(st.one_of(st.binary(max_size=5), st.sampled_from(["é".encode(), "😀".encode(),
       b"\xe4\xb8", b"\xf0\x9f", b"\xff", b"a "])), max_size=8))  # fmt: skip
@pytest.mark.parametrize("name", ["byte-level", "sentencepiece-first"])
def test_streaming_random_bytes_equals_decoding_them_at_once(
    folders: dict, name: str, data: list[bytes]
) -> None:
    tokenizer = Tokenizer.load(folders[name])
    by_byte = {}
    for idx in range(tokenizer.vocab_size):
        data_of = tokenizer.token_bytes(idx)
        if len(data_of) == 1 and not tokenizer.is_control(idx):
            by_byte.setdefault(data_of[0], idx)
    ids = [by_byte[byte] for byte in b"".join(data)]
    assert streamed(tokenizer, ids, 1, False) == tokenizer.decode(ids)


def test_a_split_code_point_is_held_back(byte_level: Tokenizer) -> None:
    stream = byte_level.stream()
    ids = byte_level.encode("a😀")
    single = list(ids)
    outs = [stream.feed([idx]) for idx in single]
    assert "\ufffd" not in "".join(outs)
    assert "".join(outs) == "a😀"
    stream = byte_level.stream()
    assert stream.feed(byte_level.encode("a")) == "a"
    first_byte = next(
        i for i in range(byte_level.vocab_size) if byte_level.token_bytes(i) == b"\xf0"
    )
    assert stream.feed([first_byte]) == ""
    assert stream.flush() == "\ufffd"


def test_a_leading_space_mark_is_dropped_once_as_decoding_at_once_does(folders: dict) -> None:
    tokenizer = Tokenizer.load(folders["sentencepiece-legacy"])
    ids = tokenizer.encode("hello world")
    assert tokenizer.decode(ids) == "hello world"
    assert streamed(tokenizer, ids, 1, False) == "hello world"
    assert streamed(tokenizer, ids + ids, 1, False) == "hello world hello world"


def test_cost_per_token_does_not_grow(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello world ") * 4000
    stream = byte_level.stream()
    half = len(ids) // 2
    times = []
    for part in (ids[:half], ids[half:]):
        start = time.perf_counter()
        for idx in part:
            stream.feed([idx])
        times.append(time.perf_counter() - start)
    assert times[1] < 5 * times[0] + 0.05


def test_token_bytes_are_the_bytes_a_token_adds(byte_level: Tokenizer, folders: dict) -> None:
    text = "Grüße 😀 ok"
    ids = byte_level.encode(text)
    assert b"".join(map(byte_level.token_bytes, ids)) == text.encode()
    piece = Tokenizer.load(folders["sentencepiece-first"])
    assert b"".join(map(piece.token_bytes, piece.encode("hi 😀"))) == " hi 😀".encode()
    assert byte_level.token_bytes(10**9) == b""


def test_an_unknown_decoder_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="CTC"):
        Detokenizer(json.dumps({"type": "CTC"}).encode())

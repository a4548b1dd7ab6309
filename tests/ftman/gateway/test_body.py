"""Bodies: exact error texts, bounds, and no input that raises anything but FieldError."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftman.gateway.body import (
    OLLAMA_TEXTS,
    OPENAI_TEXTS,
    FieldError,
    read_fields,
)


def text_of(data: bytes) -> str:
    with pytest.raises(FieldError) as caught:
        read_fields(data, "ChatRequest", OLLAMA_TEXTS)
    return caught.value.message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "missing request body"),
        (b"  \n", "missing request body"),
        (b'{"a": ', "unexpected EOF"),
        (b'{"a": "x', "unexpected EOF"),
        (b"{", "unexpected EOF"),
        (b"{a}", "invalid character 'a' looking for beginning of object key string"),
        (b"nope", "invalid character 'n' looking for beginning of value"),
        (b'{"a": NaN}', "invalid character 'N' looking for beginning of value"),
        (b'{"a": -Infinity}', "invalid character '-' looking for beginning of value"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "a number in it has too many digits"),
        (b"[1]", "json: cannot unmarshal array into Go value of type api.ChatRequest"),
        (b"7", "json: cannot unmarshal number into Go value of type api.ChatRequest"),
        (b"\xef\xbb\xbf{}", "invalid character '\\xfeff' looking for beginning of value"),
    ],
)
def test_error_texts(data: bytes, text: str) -> None:
    assert text_of(data) == text


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    assert "nested too deeply" in text_of(b'{"a":' + b"[" * 200_000)


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"1,"])
def test_bodies_that_would_explode_are_refused(piece: bytes) -> None:
    with pytest.raises(FieldError) as caught:
        read_fields(b'{"a":[' + piece * 2_000_001 + b"1]}", "x", OPENAI_TEXTS)
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")


def test_wrong_type_names_field_and_type_as_go_does() -> None:
    fields = read_fields(b'{"stream": "yes"}', "GenerateRequest", OLLAMA_TEXTS)
    with pytest.raises(FieldError) as caught:
        fields.flag("stream", True)
    assert caught.value.message == (
        "json: cannot unmarshal string into Go struct field GenerateRequest.stream of type bool"
    )


def test_wrong_type_names_the_path_for_openai() -> None:
    fields = read_fields(b'{"messages": [{"content": 5}]}', "x", OPENAI_TEXTS)
    (item,) = fields.objects("messages", "object")
    with pytest.raises(FieldError) as caught:
        item.text("content")
    assert caught.value.param == "messages[0].content"
    assert "must be of type string, not number" in caught.value.message


def test_names_fold_case_nulls_are_absent_last_duplicate_wins_trailing_data_is_ignored() -> None:
    data = b'{"MODEL": "a", "model": "b", "stream": null} trailing'
    fields = read_fields(data, "x", OLLAMA_TEXTS)
    assert fields.text("model") == "b"
    assert fields.flag("stream", True) is True


def test_lone_surrogates_become_replacement_characters() -> None:
    fields = read_fields(rb'{"prompt": "a\ud800b"}', "x", OLLAMA_TEXTS)
    assert fields.text("prompt") == "a\ufffdb"


@pytest.mark.parametrize("value", [5, 5.0])
def test_whole_floats_are_integers(value: float) -> None:
    assert read_fields(json.dumps({"n": value}).encode(), "x", OPENAI_TEXTS).integer("n") == 5


@pytest.mark.parametrize("value", ["5", True, 5.5, [], 1e300])
def test_other_things_are_not_integers(value: object) -> None:
    fields = read_fields(json.dumps({"n": value}).encode(), "x", OPENAI_TEXTS)
    with pytest.raises(FieldError):
        fields.integer("n")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(FieldError):
        read_fields(data, "x", OLLAMA_TEXTS)

"""The wire format of manager and engine, held against golden JSON in both directions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ftengine import protocol
from ftengine.protocol import (
    ErrorEvent,
    ProtocolError,
    decode,
    decode_event,
    encode,
    encode_line,
)
from tests.contract.messages import MESSAGES

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(MESSAGES)
WRONG = {"str": 1, "str | None": 1, "dict[str, str]": {"a": 1}, "tuple[str, ...]": [1]}


def golden(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return value


def read(name: str, value: dict[str, Any]) -> Any:
    data = json.dumps(value).encode()
    if name.startswith("event_"):
        return decode_event(data)
    return decode(type(MESSAGES[name]), data)


@pytest.mark.parametrize("name", NAMES)
def test_message_is_written_as_the_golden_file_says(name: str) -> None:
    assert json.loads(encode(MESSAGES[name])) == golden(name)


@pytest.mark.parametrize("name", NAMES)
def test_golden_file_is_read_as_the_message(name: str) -> None:
    assert read(name, golden(name)) == MESSAGES[name]


@pytest.mark.parametrize("name", NAMES)
def test_field_of_a_later_minor_version_is_ignored(name: str) -> None:
    later = {**golden(name), "added_later": {"deep": [1]}}
    assert read(name, later) == MESSAGES[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_field_given_a_wrong_type_is_named(name: str) -> None:
    message = MESSAGES[name]
    for field in dataclasses.fields(message):
        if field.name == "type":
            continue
        broken = {**golden(name), field.name: WRONG.get(str(field.type), "text")}
        with pytest.raises(ProtocolError, match=field.name):
            read(name, broken)


@pytest.mark.parametrize("name", NAMES)
def test_required_field_that_is_missing_is_named(name: str) -> None:
    for field in dataclasses.fields(MESSAGES[name]):
        if field.default is not dataclasses.MISSING:
            continue
        if field.default_factory is not dataclasses.MISSING:
            continue
        short = golden(name)
        del short[field.name]
        with pytest.raises(ProtocolError, match=field.name):
            read(name, short)


def test_every_wire_type_has_a_golden_file_and_every_file_a_message() -> None:
    wire = {kind for kind in vars(protocol).values() if dataclasses.is_dataclass(kind)}
    nested = {
        protocol.Sampling,
        protocol.TokenLogprob,
        protocol.ExpertStats,
        protocol.CacheStats,
        protocol.Constraint,
    }
    assert {type(message) for message in MESSAGES.values()} == wire - nested
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == NAMES


def test_a_line_is_one_object_and_one_newline() -> None:
    for message in MESSAGES.values():
        line = encode_line(message)
        assert line.count(b"\n") == 1
        assert line.endswith(b"}\n")


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000])
def test_what_is_not_an_object_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_event(text)


def test_event_of_unknown_type_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="surprise"):
        decode_event(b'{"type":"surprise"}')


def test_error_before_a_stream_has_the_shape_of_the_error_event() -> None:
    assert decode(ErrorEvent, encode(MESSAGES["event_error"])) == MESSAGES["event_error"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"sampling": {"temperature": -1}}, "temperature"),
        ({"sampling": {"top_p": 0}}, "top_p"),
        ({"token_ids": [True]}, "token_ids"),
        ({"constraint": {"kind": "bnf", "text": "x"}}, "constraint.kind"),
        ({"constraint": {"kind": "json", "text": 5}}, "constraint.text"),
    ],
)
def test_request_outside_its_limits_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        read("generate_least", {**golden("generate_least"), **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"inputs": []}, "inputs"),
        ({"inputs": [[1], []]}, "inputs"),
        ({"inputs": [1, 2]}, "inputs"),
        ({"pooling": "max"}, "pooling"),
        ({"dimensions": 0}, "dimensions"),
        ({"normalize": 1}, "normalize"),
    ],
)
def test_embed_request_outside_its_limits_names_the_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ProtocolError, match=field):
        read("embed_least", {**golden("embed_least"), **changes})

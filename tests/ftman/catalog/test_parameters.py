"""Types of PARAMETER values and how they are printed."""

from __future__ import annotations

import pytest

from ftman.catalog.parameters import parameter_lines, typed_parameters
from ftman.errors import UsageError


def test_values_get_their_types_and_stops_collect() -> None:
    pairs = [
        ("num_ctx", "4096"),
        ("temperature", "0.5"),
        ("use_mmap", "t"),
        ("stop", "a"),
        ("stop", "b"),
        ("seed", "-1"),
        ("num_ctx", "+8192"),
        ("mirostat", "whatever"),
    ]
    assert typed_parameters(pairs) == {
        "num_ctx": 8192,
        "temperature": 0.5,
        "use_mmap": True,
        "stop": ["a", "b"],
        "seed": -1,
    }


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("foo", "1", "unknown parameter 'foo'"),
        ("Temperature", "1", "unknown parameter 'Temperature'"),
        ("num_ctx", "4k", "invalid int value [4k]"),
        ("num_ctx", "1.0", "invalid int value [1.0]"),
        ("num_ctx", "1_0", "invalid int value [1_0]"),
        ("num_ctx", "9" * 30, f"invalid int value [{'9' * 30}]"),
        ("top_p", "high", "invalid float value [high]"),
        ("top_p", "nan", "invalid float value [nan]"),
        ("top_p", "1e999", "invalid float value [1e999]"),
        ("use_mmap", "yes", "invalid bool value [yes]"),
    ],
)
def test_bad_values_get_ollamas_text(key: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed_parameters([(key, text)])
    assert caught.value.message == message


def test_lines_are_padded_and_strings_quoted() -> None:
    lines = parameter_lines({"stop": ["<|im_end|>", 'a"\n'], "temperature": 1.0, "top_p": 0.9})
    assert lines == (
        'stop                           "<|im_end|>"\n'
        'stop                           "a\\"\\n"\n'
        "temperature                    1\n"
        "top_p                          0.9"
    )

"""Log lines: one record one line, nothing a terminal would obey."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from ftman import log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    made = io.StringIO()
    log.configure(stream=made)
    yield made
    root.handlers[:] = before
    root.setLevel(level)


def test_control_characters_and_line_breaks_are_escaped(stream: io.StringIO) -> None:
    logging.getLogger("x").info("name %s", "a\x1b[2J\nINFO forged\u202e")
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "a\\x1b[2J\\nINFO forged\\x202e" in text


def test_tracebacks_keep_their_lines(stream: io.StringIO) -> None:
    try:
        raise ValueError("bad\x07")
    except ValueError:
        logging.getLogger("x").exception("failed")
    lines = stream.getvalue().splitlines()
    assert len(lines) > 3
    assert lines[-1] == "    ValueError: bad\\x07"


def test_the_request_id_is_on_the_line(stream: io.StringIO) -> None:
    token = log.request_id.set("req_1")
    logging.getLogger("x").warning("hello")
    log.request_id.reset(token)
    assert " WARNING x [req_1]: hello\n" in stream.getvalue()


def test_debug_is_off_unless_asked_for(stream: io.StringIO) -> None:
    logging.getLogger("x").debug("hidden")
    log.configure(debug=True, stream=stream)
    logging.getLogger("x").debug("shown")
    assert "hidden" not in stream.getvalue()
    assert "shown" in stream.getvalue()

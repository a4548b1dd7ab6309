"""A child that answers with one object is waited for; one that does not is told of, and gone."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from ftman.child_answer import answer_of
from ftman.errors import FtmanError


def ask(code: str, timeout_s: float = 20.0, given: bytes | None = None) -> object:
    command = [sys.executable, "-c", code]
    return asyncio.run(answer_of(command, "measurement", timeout_s, "ft by hand", given))


def test_the_object_is_returned_and_the_input_arrives() -> None:
    code = "import json, sys; print(json.dumps({'got': sys.stdin.read()}))"
    assert ask(code, given=b"a plan") == {"got": "a plan"}


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "print('no object')", "print('[1]')"])
def test_anything_else_is_an_error_with_the_next_step(code: str) -> None:
    with pytest.raises(FtmanError, match="measurement ended with status") as caught:
        ask(code)
    assert "ft by hand" in (caught.value.hint or "")


def test_a_child_that_is_too_slow_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    code = (
        f"import os, time; open({str(path)!r} + '.new', 'w').write(str(os.getpid()));"
        f" os.rename({str(path)!r} + '.new', {str(path)!r}); time.sleep(60)"
    )
    with pytest.raises(FtmanError, match="no answer in 2 s"):
        ask(code, timeout_s=2.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)

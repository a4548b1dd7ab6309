"""A process that waits for its order: follows it, logs where it says, ends with whoever has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = (sys.executable, "-m", "ftengine", "wait")
ECHO = (
    sys.executable,
    "-S",
    "-c",
    "import sys; from ftengine.waiting import wait_for_order\n"
    "words = wait_for_order(lambda: print('prepared', flush=True))\n"
    "print(*words, repr(sys.stdin.read())); sys.stderr.write('said later')",
)
LIMIT_S = 60


def started(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)


def test_an_order_brings_arguments_and_the_place_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("before\n")
    order = {"arguments": ["serve", "--ftw", "a b"], "log": str(log)}
    output, errors = started(ECHO).communicate(json.dumps(order).encode() + b"\n", LIMIT_S)
    assert output.decode().splitlines() == ["prepared", "serve --ftw a b ''"]
    assert errors == b""
    assert log.read_text() == "before\nsaid later"


def test_a_closed_stdin_ends_it_even_before_it_is_prepared() -> None:
    process = started(ENGINE)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output, errors) == (0, b"", b"")


def test_half_an_order_is_none() -> None:
    process = started(ECHO)
    output, _ = process.communicate(b'{"arguments": ["serve"', LIMIT_S)
    assert process.returncode == 0
    assert b"serve" not in output

"""Memory is asked for before it is used: what the system does not grant is refused in words."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ftman.errors import failure_of
from ftman.memory import SMALL_BYTES, SPARE_BYTES, Room
from tests.e2e.processes import ROOT
from tests.fakes.tiny_models import write_tokenizer

_ENCODE = """
import resource, sys
from pathlib import Path
from ftman.chat.tokenizer import Tokenizer
from ftman.gateway.body import OLLAMA_TEXTS, read_fields

tokenizer = Tokenizer.load(Path(sys.argv[1]))
with open("/proc/self/statm") as file:
    held = int(file.read().split()[0]) << 12
resource.setrlimit(resource.RLIMIT_AS, (held + (160 << 20),) * 2)
for work in (
    lambda: tokenizer.encode("Hello world, so it goes on. " * 70_000),
    lambda: read_fields(b'{"a":[' + b"{}," * 240_000 + b"{}]}", "A", OLLAMA_TEXTS),
):
    try:
        work()
    except MemoryError as error:
        print(error)
assert tokenizer.encode("Hello world") and read_fields(b"{}", "A", OLLAMA_TEXTS)
"""


def test_what_the_system_does_not_grant_is_refused_before_it_begins() -> None:
    room = Room()
    with pytest.raises(MemoryError, match=r"does not grant \d+ MB") as caught, room.take(1 << 62):
        pytest.fail("it began")
    failure = failure_of(caught.value)
    assert failure is not None
    assert failure.status == 503
    with room.take(SMALL_BYTES), room.take(SMALL_BYTES):
        pass


def test_what_others_have_asked_for_counts_until_they_end_and_little_is_not_asked_for() -> None:
    room = Room()
    inside, over = threading.Event(), threading.Event()
    asked: list[int] = []

    def work() -> None:
        with room.take(SMALL_BYTES):
            inside.set()
            over.wait(20)

    thread = threading.Thread(target=work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftman.memory._ask_for", asked.append)
        thread.start()
        assert inside.wait(20)
        with room.take(SMALL_BYTES - 1), room.take(SMALL_BYTES + 5):
            pass
        over.set()
        thread.join(20)
        with room.take(SMALL_BYTES + 7):
            pass
    assert [size - SPARE_BYTES for size in asked] == [
        SMALL_BYTES,
        2 * SMALL_BYTES + 5,
        SMALL_BYTES + 7,
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is set and read as on Linux")
def test_a_long_text_and_a_large_body_under_a_limit_end_no_process(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", _ENCODE, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.count("does not grant") == 2, ended.stdout

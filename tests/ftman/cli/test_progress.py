"""Progress with and without a terminal."""

from __future__ import annotations

import io

import pytest

from ftman.cli.output import Output
from ftman.cli.progress import ProgressView, follow
from ftman.errors import FtmanError


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def item(done: int, status: str = "pulling abc") -> dict[str, object]:
    return {"status": status, "digest": "sha256:abc", "total": 1_000_000_000, "completed": done}


def show(stream: io.StringIO, seconds: float, **flags: bool) -> str:
    clock = FakeClock()
    out = Output(io.StringIO(), stream, **flags)
    view = ProgressView(out, clock)
    view.feed({"status": "pulling manifest"})
    for step in range(11):
        view.feed(item(step * 100_000_000))
        clock.now += seconds
    view.feed({"status": "writing manifest"})
    view.feed({"status": "success"})
    view.close()
    return stream.getvalue()


def test_without_a_terminal_lines_are_rare_and_plain() -> None:
    text = show(io.StringIO(), 2.0)
    assert text.splitlines() == [
        "pulling manifest",
        "pulling abc    0 %   0 B/1 GB",
        "pulling abc   30 %   300 MB/1 GB   50 MB/s   ETA 0:14",
        "pulling abc   60 %   600 MB/1 GB   50 MB/s   ETA 0:08",
        "pulling abc   90 %   900 MB/1 GB   50 MB/s   ETA 0:02",
        "pulling abc  100 %   1 GB/1 GB",
        "writing manifest",
        "success",
    ]
    assert "\r" not in text
    assert "\x1b" not in text


def test_on_a_terminal_one_line_is_redrawn_without_escapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = show(Tty(), 0.5)
    assert "\x1b" not in text
    assert text.count("\n") == 4
    bars = [part for part in text.split("\r") if "[" in part]
    assert len(bars) == 11
    assert "pulling abc  [##########----------]   50 %   500 MB/1 GB   200 MB/s" in bars[5]
    assert all(len(part.rstrip("\n")) < 80 for part in text.split("\r"))


def test_narrow_terminals_get_short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    text = show(Tty(), 0.5)
    assert all(len(part.rstrip("\n")) < 24 for part in text.replace("\n", "\n\r").split("\r"))


def test_what_is_no_bytes_is_counted_in_its_own_unit() -> None:
    stream = io.StringIO()
    view = ProgressView(Output(io.StringIO(), stream), FakeClock())
    view.feed({"status": "measuring memory", "total": 8, "completed": 2, "unit": "measurements"})
    assert stream.getvalue() == "measuring memory   25 %   2 of 8 measurements\n"


def test_quiet_says_nothing() -> None:
    assert show(io.StringIO(), 2.0, quiet=True) == ""


def test_json_passes_objects_through() -> None:
    out = Output(io.StringIO(), io.StringIO(), as_json=True)
    follow([{"status": "a"}, {"status": "success"}], out)
    assert out.stdout.getvalue() == '{"status": "a"}\n{"status": "success"}\n'  # type: ignore[attr-defined]
    assert out.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_stream_that_just_ends_is_an_error() -> None:
    out = Output(io.StringIO(), io.StringIO())
    with pytest.raises(FtmanError, match="'pulling manifest', before it was done"):
        follow([{"status": "pulling manifest"}], out)

"""F21: Modelfiles and settings files that are malformed: the place is named, nothing is made."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ftman.cli.main import main
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import Rig, runs
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of

LINE = r"(?i)line (\d+)"
"""Where the place cannot be a line, the pattern is what else must be said."""
Made = tuple[bytes, str]


def lines_before(rng: random.Random) -> str:
    """Innocent lines, so that the bad one is not always the first."""
    lines = ["FROM tiny", "# a comment", "", "PARAMETER temperature 0.5", 'SYSTEM "be brief"']
    return "\n".join(rng.choices(lines, k=rng.randrange(5)))


def with_line(bad: str) -> Callable[[random.Random], Made]:
    """A Modelfile in which one line is wrong."""

    def make(rng: random.Random) -> Made:
        return f"FROM tiny\n{lines_before(rng)}\n{bad}\n".encode(), LINE

    return make


def whole(text: str | bytes, told: str) -> Callable[[random.Random], Made]:
    """A Modelfile that is wrong as a whole."""
    data = text if isinstance(text, bytes) else text.encode()
    return lambda rng: (data, told)


MODELFILES: dict[str, Callable[[random.Random], Made]] = {
    "unknown word": with_line("FORM tiny"),
    "no value": with_line("SYSTEM"),
    "open quotes": with_line('SYSTEM """never closed'),
    "open quote": with_line('TEMPLATE "never closed'),
    "bad number": with_line("PARAMETER temperature warm"),
    "unknown parameter": with_line("PARAMETER warmth 3"),
    "strange parameter": with_line("PARAMETER $(id) 3"),
    "unknown role": with_line("MESSAGE robot hello"),
    "bad version": with_line("REQUIRES yesterday"),
    "one long line": with_line("FORM " + "x" * (10 << 20)),
    "no FROM": whole("SYSTEM hello\n", "no FROM line"),
    "empty": whole("", "no FROM line"),
    "own name": whole("FROM new\n", "new"),
    "loop": whole("FROM new2\nFROM new\n", "new"),
    "outside": whole("FROM ../../../../etc/passwd\n", "passwd"),
    "no model": whole("FROM /etc/passwd\n", "passwd"),
    "binary": whole(bytes(range(256)) * 40, "command must be|utf-8|UTF-8"),
    "bad template": whole('FROM tiny\nTEMPLATE "{{ if .System }}no end"\n', "template"),
    "other template": whole('FROM tiny\nTEMPLATE "{{ .Prompt | nosuch }}"\n', "template"),
    "no adapter": whole("FROM tiny\nADAPTER ./nowhere\n", "nowhere"),
    "ten thousand parameters": whole(
        "FROM tiny\n" + "".join(f"PARAMETER nosuch{n} 1\n" for n in range(10_000)), LINE
    ),
}


@runs
def test_modelfiles_are_refused_with_the_place_and_nothing_is_made(
    rig: Rig, num_points: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = list(MODELFILES)
    rig.rng.shuffle(kinds)
    path = rig.root / "Modelfile"
    with rig.inside(FakeScript(tokens=ids_of("ok"))) as manager:
        monkeypatch.setenv("FT_HOST", manager.url)
        before = rig.check_store()
        for number in range(max(num_points, len(kinds))):
            kind = kinds[number % len(kinds)]
            data, told = MODELFILES[kind](rig.rng)
            path.write_bytes(data)
            code = main(["create", "new", "-f", str(path)])
            said = capsys.readouterr().err
            assert code in (1, 2, 5), (kind, said)
            assert re.search(told, said), (kind, said[-2000:])
            assert "ft itself failed" not in said, (kind, said)
            assert len(said) < 4000, (kind, len(said))
            assert rig.check_store() == before, kind
        invariants.answers_when_healthy(manager.url)


@runs
def test_line_ends_of_other_systems_and_many_parameters_are_no_fault(
    rig: Rig, num_points: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rig.root / "Modelfile"
    with rig.inside(FakeScript(tokens=ids_of("ok")), (Tiny(),)) as manager:
        monkeypatch.setenv("FT_HOST", manager.url)
        for number in range(num_points):
            end, mark = (
                rig.rng.choice([b"\r\n", b"\n", b"\r"]),
                rig.rng.choice([b"", b"\xef\xbb\xbf"]),
            )
            lines = [b"FROM tiny", *(b"PARAMETER stop s%d" % n for n in range(2000)), b"SYSTEM a"]
            path.write_bytes(mark + end.join(lines))
            assert main(["create", f"new{number}", "-f", str(path)]) == 0, capsys.readouterr().err
            assert main(["rm", f"new{number}"]) == 0
        assert set(rig.check_store()) == {"tiny/latest"}
        invariants.answers_when_healthy(manager.url)


SETTINGS: dict[str, tuple[bytes, str]] = {
    "no TOML": (b"keep_alive = \n", r"line 1, column \d+"),
    "unclosed": (b'\n\nmodels = "x\n', r"line 3, column \d+"),
    "binary": (bytes(range(256)), "config.toml"),
    "twice": (b'device = "cpu"\ndevice = "gpu"\n', r"line 2, column \d+"),
    "unknown": (b'devise = "cpu"\n', "unknown setting 'devise'"),
    "a table": (b"[device]\nx = 1\n", "device"),
    "wrong type": (b"num_parallel = [1, 2]\n", "num_parallel"),
    "negative": (b"max_queue = -1\n", "max_queue"),
    "no number": (b"keep_alive = nan\n", "keep_alive"),
    "too much": (b"threads = 1e309\n", "threads"),
    "no choice": (b'device = "abacus"\n', "device"),
    "no address": (b'host = "here:there"\n', "host"),
    "ten megabytes": (b"#" + b"x" * (10 << 20) + b"\nq=1\n", "unknown setting 'q'"),
    "a folder": (b"", "config.toml"),
}


@runs
def test_settings_files_are_refused_with_the_place(
    tmp_path: Path,
    rng: random.Random,
    num_points: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = list(SETTINGS)
    rng.shuffle(kinds)
    for number in range(max(num_points, len(kinds))):
        kind = kinds[number % len(kinds)]
        data, told = SETTINGS[kind]
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setenv("FT_HOME", str(folder))
        path = folder / "config.toml"
        path.mkdir() if kind == "a folder" else path.write_bytes(data)
        code = main(["settings"])
        said = capsys.readouterr().err
        assert code == 2, (kind, said)
        assert re.search(told, said), (kind, said)
        assert list(folder.iterdir()) == [path]

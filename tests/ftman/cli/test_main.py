"""Dispatch, help, exit codes, error form, and what start-up imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftman import __version__
from ftman.cli.verbs import VERBS, parser_of
from ftman.errors import FtmanError
from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import Gateway, Reply

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("httpx", "pydantic", "fastapi", "starlette", "uvicorn", "torch", "numpy", "tokenizers")


@pytest.mark.parametrize("words", [["--help"], ["version"], ["-v"], ["help", "run"], ["run", "-h"]])
def test_help_and_version_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom ftman.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print(*sorted(sys.modules), sep=',')"
    )
    text = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    loaded = set(text.splitlines()[-1].split(","))
    assert not loaded & set(HEAVY)


def test_help_is_quick() -> None:
    spent = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "ftman", "--help"], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        after = os.times()
        spent.append(sum(after[2:4]) - sum(before[2:4]))
    assert min(spent) < 0.15


def test_help_lists_every_verb_and_setting(ft: Cli) -> None:
    done = ft("--help")
    assert done.code == 0
    assert all(verb.name in done.out for verb in VERBS)
    assert "FT_HOST" in done.out
    assert ft().out == done.out


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help_json_quiet_and_a_module(verb, ft: Cli) -> None:
    import importlib

    text = ft("help", verb.name).out
    assert "--json" in text
    assert "--quiet" in text
    assert callable(importlib.import_module(verb.path).run)
    assert parser_of(verb, __import__("argparse").ArgumentParser)


def test_version(ft: Cli) -> None:
    assert ft("version").out == f"ft version is {__version__}\n"
    assert json.loads(ft("version", "--json").out) == {"version": __version__}


def test_unknown_verbs_are_usage_errors_with_a_suggestion(ft: Cli) -> None:
    done = ft("lst")
    assert done.code == 2
    assert done.err == 'error: unknown command "lst" for "ft"\n  Did you mean: ft list, ft ls?\n'
    assert ft("x\x1b[2J").err.isprintable() is False  # newlines only
    assert "\x1b" not in ft("x\x1b[2J").err


@pytest.mark.parametrize(
    "words",
    [["pull"], ["run"], ["list", "--nope"], ["cp", "a"], ["autostart", "maybe"], ["rm"]],
)
def test_wrong_arguments_are_usage_errors(ft: Cli, words: list[str]) -> None:
    done = ft(*words)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert f"See: ft {words[0]} --help" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("show", "a..b"), ("rm", "m", "a..b"), ("cp", "m", "a..b"), ("stop", "a..b"),
        ("memory", "a..b", "--experts", "1"), ("memory", "m", "--experts", "-1"),
        ("calibrate", "a..b"), ("bench", "a..b", "--profile"), ("verify", "a..b"),
        ("export", "a..b", "/nowhere/x"), ("launch", "pi", "--model", "a..b"), ("pull", "a..b"),
        ("fit", "a..b"), ("run", "a..b"), ("run", "m", "hi", "--dimensions", "0"),
        ("show", "m", "--engine", "--license"), ("show", "m", "--engine", "--effective"),
        ("key", "list", "k"), ("key", "rm", "k", "--rights", "use"), ("logs", "--list", "-f"),
        ("launch", "pi", "--restore", "--dry-run"), ("launch", "pi", "--restore", "--model", "m"),
        ("import", "--ollama", "--name", "x"), ("import", "--ollama", "--all", "x"),
        ("import", "/", "--all"), ("import", "/", "--from", "/"), ("import", "/", "--name", "x"),
        ("import", "~no-such-user/x"), ("export", "m", "~no-such-user/x"),
        ("create", "m", "-f", "~no-such-user/x"), ("doctor", "--bundle", "~no-such-user/x"),
        ("registry", "check", "--folder", "~no-such-user/x"), ("create", "m", "-q", "q9"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anybody_is_asked(
    ft: Cli, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (tmp_path / "Modelfile").write_text("FROM m\n")
    monkeypatch.chdir(tmp_path)
    done = ft(*words)
    assert done.code == 2, done.err
    assert done.err.startswith("error: ")
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "m", "\udcff"), "is not UTF-8"),
        (("search", "\udcff"), "is not UTF-8"),
        (("search", "x" * 70000), "that cannot be asked"),
    ],
)
def test_what_no_request_can_hold_is_told_in_a_line(
    ft: Cli, gateway: Gateway, words: list[str], said: str
) -> None:
    done = ft(*words)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(("verb", "needed"), [("run", "MODEL"), ("launch", "AGENT")])
def test_only_what_is_needed_is_asked_for(ft: Cli, verb: str, needed: str) -> None:
    assert f"the following arguments are required: {needed}\n" in ft(verb).err


def test_bad_settings_name_the_key(ft: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_MAX_QUEUE", "many")
    done = ft("list")
    assert done.code == 2
    assert "max_queue = 'many'" in done.err


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "", 2),
        (404, "", 5),
        (409, "", 1),
        (500, "", 1),
        (502, "network", 4),
        (502, "integrity", 1),
        (503, "", 1),
        (507, "cannot_fit", 3),
        (400, "unsupported", 1),
    ],
)
def test_statuses_become_exit_codes(
    ft: Cli, gateway: Gateway, status: int, code: str, exit_code: int
) -> None:
    told = {"error": "it went wrong", "code": code, "hint": "do this"}
    gateway.on("GET", "/api/tags", Reply(told, status))
    done = ft("list")
    assert done.code == exit_code
    assert done.out == ""
    assert done.err == "error: it went wrong\n  do this\n"


def test_json_errors_are_objects_on_stdout(ft: Cli, gateway: Gateway) -> None:
    gateway.on("GET", "/api/tags", Reply({"error": "full", "code": "cannot_fit"}, 507))
    done = ft("list", "--json")
    assert json.loads(done.out) == {"error": "full", "code": "cannot_fit", "hint": ""}
    assert done.code == 3


def test_answers_that_are_no_json_are_told(ft: Cli, gateway: Gateway) -> None:
    gateway.on("GET", "/api/tags", Reply(b"<html>", 200))
    assert "not a JSON object: '<html>'" in ft("list").err
    gateway.on("GET", "/api/tags", Reply(b"<html>", 500))
    assert "the manager answered 500: <html>" in ft("list").err


def test_tracebacks_only_with_debug(
    ft: Cli, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.on("GET", "/api/tags", {"models": [{}]})
    done = ft("list")
    assert done.code == 1
    assert "ft itself failed" in done.err
    assert "Traceback" not in done.err
    monkeypatch.setenv("FT_DEBUG", "1")
    assert "Traceback" in ft("list").err


HOSTILE = ["../x", "-rf", "x\x1b[2Jy", "a" * 4096, "x\u202ey", "$(id)", "x\ny", "CON.", "x\0y"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("verb", ["show", "pull", "rm", "stop", "run", "create"])
def test_hostile_names_never_reach_the_terminal_raw(
    ft: Cli, gateway: Gateway, name: str, verb: str, tmp_path: Path
) -> None:
    refusal = Reply({"error": f"invalid model name {name}"}, 400)
    for method, path in (
        ("POST", "/api/show"),
        ("POST", "/api/pull"),
        ("POST", "/api/generate"),
        ("DELETE", "/api/delete"),
    ):
        gateway.on(method, path, refusal)
    done = ft(verb, "--", name)
    assert done.code == (5 if (verb, name) == ("pull", "../x") else 2)
    bare = (done.out + done.err).replace("\n", "")
    assert bare.isprintable(), bare


ARGUMENTS = {
    "run": ("m", "hi"), "pull": ("m",), "create": ("m",), "push": ("m",), "show": ("m",),
    "memory": ("m", "--experts", "1"), "fit": ("m",), "stop": ("m",), "rm": ("m",),
    "cp": ("a", "b"), "bench": ("m", "--profile"), "export": ("m", "/nowhere/x"),
    "import": ("/nowhere/x",), "registry": ("check", "--folder", "/none"), "jobs": ("pause", "j"),
    "launch": ("nobody",), "autostart": ("status",), "completion": ("bash",), "key": ("rm", "k"),
}  # fmt: skip
"""For a verb to get as far as its work."""


STATES = ("no manager starts", "a stranger has the port", "a home below a file", "a file as home")


@pytest.mark.parametrize("state", [*STATES, "a home that cannot be made"])
def test_a_verb_that_fails_says_so_in_a_line(
    ft: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    from ftman.cli import manager

    def no_start(self: object, address: str) -> None:
        raise FtmanError("the ft manager did not start: for a test")

    monkeypatch.setattr(manager.Finder, "_spawn", no_start)
    monkeypatch.setenv("FT_HOST", "127.0.0.1:1")
    if state == "a stranger has the port":
        monkeypatch.setattr(manager, "probe", lambda url, certificate: "other")
    home = tmp_path / "file"
    home.write_text("")
    homes = {"a home below a file": home / "home", "a file as home": home}
    homes["a home that cannot be made"] = Path("/proc/no-such")
    if state in homes:
        monkeypatch.setenv("FT_HOME", str(homes[state]))
    monkeypatch.chdir(tmp_path)
    failed = 0
    for verb in VERBS:
        if verb.name == "serve":
            continue
        done = ft(verb.name, *ARGUMENTS.get(verb.name, ()))
        failed += done.code != 0
        # What the doctor finds wrong is its answer.
        said = done.out if verb.name == "doctor" else done.err
        assert done.code == 0 or said.strip(), verb.name
        assert "ft itself failed" not in done.err, (verb.name, done.err)
        if state in homes and verb.name in ("list", "run", "gc"):
            assert f"the folder {homes[state]} cannot be used: " in done.err, (verb.name, done.err)
    assert failed > len(VERBS) // 3


@pytest.mark.parametrize("words", [("serve",), ("autostart", "enable"), ("key", "create", "k")])
def test_an_unusable_home_is_told_before_anything_is_begun(
    ft: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setenv("FT_HOME", str(home))
    done = ft(*words)
    assert done.code == 1
    assert done.err.startswith(f"error: the folder {home} cannot be used: {home} is a file\n")
    assert "FT_HOME=FOLDER" in done.err


@pytest.mark.parametrize(("number", "said"), [(28, "the disk refused"), (24, "ft has used up")])
def test_what_the_system_refuses_is_no_fault_of_ft(
    ft: Cli, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refused() -> None:
        raise OSError(number, os.strerror(number), "/somewhere")

    monkeypatch.setattr("ftman.cli.main.load_config", refused)
    done = ft("list")
    assert done.code == 1
    assert said in done.err
    assert "ft doctor" in done.err
    assert "ft itself failed" not in done.err

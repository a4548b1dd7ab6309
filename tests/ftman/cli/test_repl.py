"""The conversation, driven through a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ftman.cli.client import NO_MANAGER, ManagerClient
from ftman.cli.output import Output
from ftman.cli.repl import Repl
from ftman.cli.repl_state import ReplState
from ftman.cli.session import Session
from ftman.clock import SYSTEM
from ftman.config import load_config
from ftman.errors import NetworkError
from tests.ftman.cli.gateway import SHOWN, Gateway, Reply, answer_stream

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 10.0


class Terminal:
    """`ft run m` on a pseudo terminal."""

    def __init__(self, *words: str):
        self._master, slave = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftman", "run", "m", *words],
            stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=env,
            start_new_session=True, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def until(self, wanted: str) -> str:
        """Read until the screen text holds `wanted`; returns what came and forgets it."""
        limit = SYSTEM.monotonic() + LIMIT_S
        while wanted not in self.text:
            left = limit - SYSTEM.monotonic()
            ready = left > 0 and select.select([self._master], [], [], left)[0]
            data = self._read() if ready else b""
            assert data, f"no {wanted!r} in {self.text!r}"
            self.text += re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", data.decode()).replace("\r", "")
        seen, _, self.text = self.text.partition(wanted)
        return seen + wanted

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def say(self, text: str) -> str:
        """Type a line and wait for the next prompt; returns all that was shown."""
        self.send(text + "\r")
        return self.until("\n>>> ")

    def end(self) -> int:
        self.send("/bye\r")
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 65536)
        except OSError:
            return b""


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(gateway: Gateway) -> Iterator[Terminal]:
    gateway.on("POST", "/api/chat", Reply(answer_stream("Hello", " there", key="message")))
    made = Terminal()
    made.until(">>> ")
    yield made
    made.close()


def test_turns_carry_the_whole_conversation(terminal: Terminal, gateway: Gateway) -> None:
    assert "Hello there" in terminal.say("hi")
    assert "Hello there" in terminal.say("and you?")
    assert terminal.end() == 0
    assert gateway.bodies("/api/chat")[1] == {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello there"},
            {"role": "user", "content": "and you?"},
        ],
    }


def test_a_warning_is_given_once_a_session(terminal: Terminal, gateway: Gateway) -> None:
    said = {"warning": "num_ctx 9 is above 4; 1 oldest message was left out"}
    stream = answer_stream("ok", key="message")
    gateway.on("POST", "/api/chat", Reply([*stream[:-1], stream[-1] | said]))
    assert f"warning: {said['warning']}\n" in terminal.say("hi")
    said = {"warning": "num_ctx 9 is above 4; 2 oldest messages were left out"}
    gateway.on("POST", "/api/chat", Reply([*stream[:-1], stream[-1] | said]))
    assert "warning: 2 oldest messages were left out\n" in terminal.say("and?")
    assert "warning" not in terminal.say("once more")
    assert terminal.end() == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_session(gateway: Gateway) -> None:
    def endless() -> Iterator[dict[str, object]]:
        yield {"message": {"role": "assistant", "content": "Once "}, "done": False}
        while not gateway.broken.wait(0.02):
            yield {"message": {"role": "assistant", "content": "more "}, "done": False}

    gateway.on("POST", "/api/chat", Reply(endless))
    terminal = Terminal()
    try:
        terminal.until(">>> ")
        terminal.send("tell a story\r")
        terminal.until("Once more")
        terminal.send("\x03")
        terminal.until(">>> ")
        assert gateway.broken.wait(LIMIT_S)
        gateway.on("POST", "/api/chat", Reply(answer_stream("ok", key="message")))
        assert "ok" in terminal.say("go on")
        messages = gateway.bodies("/api/chat")[1]["messages"]
        assert messages[1]["content"].startswith("Once more")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_ctrl_c_at_the_prompt_says_how_to_leave_and_ctrl_d_leaves(terminal: Terminal) -> None:
    terminal.send("\x03")
    terminal.until("Use Ctrl + d or /bye to exit.")
    terminal.until(">>> ")
    terminal.send("\x04")
    assert terminal.process.wait(LIMIT_S) == 0


def test_multi_line_messages_and_pasted_blocks_are_one_message(
    terminal: Terminal, gateway: Gateway
) -> None:
    terminal.send('"""one\r')
    terminal.until("... ")
    terminal.say('two"""')
    terminal.send("\x1b[200~pasted\nlines\x1b[201~")
    terminal.say("")
    contents = [body["messages"][-1]["content"] for body in gateway.bodies("/api/chat")]
    assert contents == ["one\ntwo", "pasted\nlines"]


def test_settings_reach_the_request(terminal: Terminal, gateway: Gateway) -> None:
    assert "Set parameter 'num_ctx' to '4096'" in terminal.say("/set parameter num_ctx 4096")
    assert "Set parameter 'stop' to 'a, b'" in terminal.say("/set parameter stop a b")
    bad = terminal.say("/set parameter num_ctx big")
    assert 'Couldn\'t set parameter: "invalid int value [big]"' in bad
    assert "Couldn't set parameter: \"unknown parameter 'x'\"" in terminal.say("/set parameter x 1")
    assert "Set system message." in terminal.say("/set system Be brief.")
    assert "Set format to 'json' mode." in terminal.say("/set format json")
    assert "Invalid or missing format" in terminal.say("/set format xml")
    assert "does not support thinking" in terminal.say("/set think")
    assert 'invalid value for /set think: "hard"' in terminal.say("/set think hard")
    assert "Set 'nothink' mode." in terminal.say("/set nothink")
    assert "Set 'verbose' mode." in terminal.say("/set verbose")
    assert "Set 'nowordwrap' mode." in terminal.say("/set nowordwrap")
    assert "Unknown command '/set other'" in terminal.say("/set other")
    assert "eval rate:            66.22 tokens/s" in terminal.say("hi")
    assert gateway.bodies("/api/chat")[0] == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ],
        "format": "json",
        "think": False,
        "options": {"num_ctx": 4096, "stop": ["a", "b"]},
    }
    assert "Disabled format." in terminal.say("/set noformat")
    assert "Cleared session context" in terminal.say("/clear")
    terminal.say("again")
    assert [m["role"] for m in gateway.bodies("/api/chat")[1]["messages"]] == ["system", "user"]


def test_show_list_load_and_save(terminal: Terminal, gateway: Gateway) -> None:
    gateway.on("GET", "/api/tags", {"models": []})
    gateway.on("POST", "/api/create", Reply([{"status": "success"}]))
    assert "architecture        llama" in terminal.say("/show info")
    assert "Model defined parameters:" in terminal.say("/show parameters")
    assert "Be kind." in terminal.say("/show system")
    assert "Apache License" in terminal.say("/show license")
    assert "NAME    ID" in terminal.say("/list")
    assert "Unknown command '/nope'" in terminal.say("/nope")
    assert "/set parameter" in terminal.say("/? set")
    assert "Available Commands" in terminal.say("/?")
    terminal.say("hi")
    terminal.say("/set system Short.")
    assert "Created new model 'mine'" in terminal.say("/save mine")
    assert "error: The model name 'a//b' is invalid" in terminal.say("/save a//b")
    assert gateway.bodies("/api/create") == [
        {
            "model": "mine",
            "from": "m",
            "system": "Short.",
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "Hello there"},
            ],
        }
    ]
    assert "Loading model 'n'" in terminal.say("/load n")
    terminal.say("hello")
    assert gateway.bodies("/api/chat")[-1]["messages"] == [{"role": "user", "content": "hello"}]
    gateway.on("POST", "/api/show", Reply({"error": "model 'x' not found"}, 404))
    assert "Couldn't find model 'x'" in terminal.say("/load x")


def test_errors_keep_the_session_and_take_the_question_back(
    terminal: Terminal, gateway: Gateway
) -> None:
    gateway.on("POST", "/api/chat", Reply({"error": "queue full", "code": "busy"}, 503))
    assert "error: queue full" in terminal.say("lost")
    gateway.on("POST", "/api/chat", Reply(answer_stream("fine", key="message")))
    terminal.say("kept")
    assert gateway.bodies("/api/chat")[1]["messages"] == [{"role": "user", "content": "kept"}]


def test_an_answer_that_breaks_off_ends_its_line_before_the_error(gateway: Gateway) -> None:
    stream = [*answer_stream("half", key="message")[:1], {"error": "the engine died"}]
    gateway.on("POST", "/api/chat", Reply(stream))
    terminal = Terminal()
    try:
        terminal.until(">>> ")
        assert "half\nerror: the engine died" in terminal.say("hi")
    finally:
        terminal.close()


class Gone:
    """A manager that ended while nobody asked it."""

    def stream(self, path: str, body: dict[str, object]) -> Iterator[dict[str, object]]:
        raise NetworkError("no ft manager answers", code=NO_MANAGER)
        yield {}

    def close(self) -> None:
        pass


class Back(Gone):
    """The one that was started in its place."""

    def stream(self, path: str, body: dict[str, object]) -> Iterator[dict[str, object]]:
        yield from answer_stream("here", key="message")


def test_a_message_reaches_a_manager_that_had_to_be_started_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, told = io.StringIO(), io.StringIO()
    config = load_config({"FT_HOME": str(tmp_path)})
    session = SimpleNamespace(config=config, out=Output(said, told), manager=Back)
    lines = iter(["hi", "/bye"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    repl = Repl(cast(ManagerClient, Gone()), cast(Session, session), ReplState("m"))
    assert repl.run() == 0
    assert said.getvalue() == "here\n\n"
    assert "error" not in told.getvalue()


def test_history_outlives_the_session(terminal: Terminal, tmp_path: Path) -> None:
    terminal.say("first question")
    terminal.say("/set nohistory")
    terminal.say("secret")
    assert terminal.end() == 0
    lines = (tmp_path / "ft-home" / "state" / "history").read_text().splitlines()
    assert [json.loads(line) for line in lines] == ["first question", "/set nohistory"]


def test_example_turns_are_shown_first(gateway: Gateway) -> None:
    turns = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}]
    gateway.on("POST", "/api/show", {**SHOWN, "messages": turns})
    terminal = Terminal()
    try:
        assert ">>> q1\na1\n" in terminal.until("Send a message")
    finally:
        terminal.close()


def test_a_slow_load_is_told(gateway: Gateway) -> None:
    release = threading.Event()

    def generate(body: object) -> Reply:
        release.wait(LIMIT_S)
        return Reply({"done": True})

    gateway.on("POST", "/api/generate", generate)
    entry = {"name": "m", "ft": {"state": "loading", "loaded_bytes": 5e6, "total_bytes": 1e7}}
    gateway.on("GET", "/api/ps", {"models": [entry]})
    terminal = Terminal()
    try:
        terminal.until("loading m ... 0:0")
        terminal.until("5 MB/10 MB")
        release.set()
        terminal.until(">>> ")
    finally:
        release.set()
        terminal.close()


def test_a_load_that_measures_the_machine_first_says_so(gateway: Gateway) -> None:
    release = threading.Event()

    def generate(body: object) -> Reply:
        release.wait(LIMIT_S)
        return Reply({"done": True})

    gateway.on("POST", "/api/generate", generate)
    step = {"phase": "q4_1", "completed": 2, "total": 7}
    gateway.on("GET", "/api/ft/status", {"version": "0.1.0", "measuring": step})
    terminal = Terminal()
    try:
        terminal.until("measuring this machine first, once (q4_1, 2 of 7)")
        release.set()
        terminal.until(">>> ")
    finally:
        release.set()
        terminal.close()


def test_a_model_cannot_send_commands_to_the_terminal(gateway: Gateway) -> None:
    gateway.on("POST", "/api/chat", Reply(answer_stream("a\x1b]0;evil\x07b", key="message")))
    terminal = Terminal("--nowordwrap")
    try:
        terminal.until(">>> ")
        assert "a]0;evilb" in terminal.say("hi")
    finally:
        terminal.close()


def test_ctrl_j_begins_a_new_line_and_ctrl_g_goes_on_in_an_editor(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "written: %s" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    gateway.on("POST", "/api/chat", Reply(answer_stream("ok", key="message")))
    terminal = Terminal()
    try:
        terminal.until(">>> ")
        terminal.send("one\ntwo")
        terminal.say("")
        terminal.send("half a thought\x07")
        terminal.until("ok")
        terminal.until(">>> ")
        assert terminal.end() == 0
    finally:
        terminal.close()
    contents = [body["messages"][-1]["content"] for body in gateway.bodies("/api/chat")]
    assert contents == ["one\ntwo", "written: half a thought"]


def test_what_is_in_force_and_what_experts_do_is_shown(
    terminal: Terminal, gateway: Gateway
) -> None:
    effective = [{"name": "top_k", "value": 40, "origin": "default"}]
    gateway.on("POST", "/api/show", {**SHOWN, "ft": {"effective": effective}})
    assert "top_k" in terminal.say("/show effective")
    gateway.on("GET", "/api/ft/experts", {"models": [{"name": "m:latest", "stats": None}]})
    assert "m:latest   dense model" in terminal.say("/show experts")
    assert terminal.end() == 0


def test_no_history_is_kept_where_that_is_the_setting(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_NOHISTORY", "1")
    gateway.on("POST", "/api/chat", Reply(answer_stream("ok", key="message")))
    terminal = Terminal()
    try:
        terminal.until(">>> ")
        terminal.say("a secret")
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert not list(tmp_path.rglob("history"))

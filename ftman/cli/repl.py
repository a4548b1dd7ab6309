"""The conversation on a terminal: read, send, show, until /bye. Commands are in repl_commands.py.

Ctrl-C stops an answer and keeps the session; at the prompt it says how to leave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ftman.cli.answer import AnswerView, timings_text
from ftman.cli.client import NO_MANAGER, ManagerClient
from ftman.cli.external_editor import edit
from ftman.cli.line_editor import EDIT, LineEditor
from ftman.cli.output import error_text, safe
from ftman.cli.repl_commands import Commands, Leave
from ftman.cli.repl_state import ReplState
from ftman.cli.session import Session
from ftman.config import engine_environment
from ftman.errors import FtmanError, NetworkError, failure_of

PROMPT = ">>> "
CONTINUATION = "... "
QUOTES = '"""'
HISTORY_NAME = "history"


class Repl:
    """One session of `ft run` without a prompt."""

    def __init__(self, manager: ManagerClient, session: Session, state: ReplState):
        self._manager = manager
        self._session = session
        self._state = state
        self._out = session.out
        self._told: set[str] = set()
        keep = not session.config.nohistory
        path = session.config.paths.state / HISTORY_NAME
        self._editor = LineEditor(path, keep_history=keep)
        self._commands = Commands(lambda: self._manager, session, state, self._editor, self._block)

    def run(self) -> int:
        """Talk until the user leaves; returns the exit code."""
        self._show_examples()
        self._out.note("Send a message (/? for help)")
        try:
            while True:
                try:
                    text = self._read()
                except KeyboardInterrupt:
                    self._out.data("\nUse Ctrl + d or /bye to exit.")
                    continue
                if text.strip():
                    self._turn(text)
        except (EOFError, Leave):
            return 0
        finally:
            self._editor.save()

    def _turn(self, text: str) -> None:
        try:
            if text.startswith(EDIT):
                self._edit(text.removeprefix(EDIT).strip())
            elif text.startswith("/"):
                self._commands.run(text)
            else:
                self._say(text)
        except FtmanError as error:
            print(error_text(error), file=self._out.stderr, flush=True)
            if isinstance(error, NetworkError):
                with contextlib.suppress(FtmanError):  # the next message tries again
                    self._reconnect()
        except OSError as error:  # a full disk under the editor's file
            told = failure_of(error)
            if told is None:
                raise
            print(error_text(told), file=self._out.stderr, flush=True)
        except KeyboardInterrupt:
            self._out.data("")

    def _edit(self, text: str) -> None:
        """Write a message in the user's editor, show it and send it; an empty one is not sent."""
        folder = self._session.config.paths.state
        written = edit(text, folder, engine_environment())
        if not written.strip():
            self._out.note("nothing was written, so nothing is sent")
            return
        self._out.data(f"{PROMPT}{safe(written)}")
        self._editor.remember(written)
        self._turn(written)

    def _say(self, text: str) -> None:
        state = self._state
        state.messages.append({"role": "user", "content": text})
        view = AnswerView(
            self._out,
            wrap=state.word_wrap,
            hide_thinking=state.hide_thinking,
            told=self._told,
        )
        try:
            final = self._answer(view)
        except NetworkError as error:
            if error.code != NO_MANAGER:
                raise
            self._reconnect()  # nothing was sent, so it may be said again
            final = self._answer(view)
        finally:
            # An answer cut short counts as said; a question without any answer was not asked.
            if view.text:
                state.messages.append({"role": "assistant", "content": view.text})
            else:
                state.messages.pop()
        if state.verbose:
            self._out.note(timings_text(final) + "\n")

    def _answer(self, view: AnswerView) -> Mapping[str, Any]:
        body = self._state.request()
        with contextlib.closing(self._manager.stream("/api/chat", body)) as stream:
            return view.show(stream)

    def _read(self) -> str:
        line = self._editor.read(PROMPT)
        if line.lstrip().startswith(QUOTES):
            return self._block(line.lstrip()[len(QUOTES) :])
        return line

    def _block(self, first: str) -> str:
        """Text up to a line that ends with three quotes; `first` follows the opening ones."""
        lines = [first]
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(self._editor.read(CONTINUATION))
        return "\n".join(lines).rstrip()[: -len(QUOTES)]

    def _show_examples(self) -> None:
        for message in self._state.shown.get("messages") or ():
            head = PROMPT if message.get("role") == "user" else ""
            self._out.data(f"{head}{message.get('content', '')}")
            if not head:
                self._out.data("")

    def _reconnect(self) -> None:
        """Find the manager again, or start it.   Raises: FtmanError."""
        manager = self._session.manager()
        self._manager.close()
        self._manager = manager

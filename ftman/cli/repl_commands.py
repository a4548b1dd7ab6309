"""The slash commands of the conversation, with Ollama's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftman.catalog.parameters import typed_parameters
from ftman.cli.client import ManagerClient
from ftman.cli.commands.listing import models_table
from ftman.cli.commands.ps import entries_named, experts_line
from ftman.cli.commands.show import effective_table, sections_text
from ftman.cli.line_editor import LineEditor
from ftman.cli.loading import load
from ftman.cli.progress import follow
from ftman.cli.repl_state import ReplState, think_value
from ftman.cli.session import Session
from ftman.clock import SYSTEM
from ftman.errors import NotFoundError, UsageError
from ftman.names import is_valid_name

QUOTES = '"""'
HELP = """Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load a session or model
  /save <model>   Save your current session
  /clear          Clear session context
  /list           List installed models
  /edit           Write a message in your editor
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message.
"""
HELP_SET = """Available Commands:
  /set parameter ...     Set a parameter
  /set system <string>   Set system message
  /set history           Enable history
  /set nohistory         Disable history
  /set wordwrap          Enable wordwrap
  /set nowordwrap        Disable wordwrap
  /set format json       Enable JSON mode
  /set noformat          Disable formatting
  /set verbose           Show timings
  /set quiet             Hide timings
  /set think             Enable thinking
  /set nothink           Disable thinking
"""
HELP_SHOW = """Available Commands:
  /show info         Show details for this model
  /show license      Show model license
  /show modelfile    Show Modelfile for this model
  /show parameters   Show parameters for this model
  /show system       Show system message
  /show template     Show prompt template
  /show effective    Show every setting in force, and who says so
  /show experts      Show what happens to routed experts
"""
HELP_SHORTCUTS = """Available keyboard shortcuts:
  Ctrl + a / Ctrl + e   Move to the beginning / end of the line
  Alt + b / Alt + f     Move back / forward by one word
  Ctrl + k / Ctrl + u   Delete the text after / before the cursor
  Ctrl + w              Delete the word before the cursor
  Ctrl + j              Begin a new line without sending
  Ctrl + g              Go on in your editor (EDITOR)
  Ctrl + l              Clear the screen
  Ctrl + c              Stop the model from responding
  Ctrl + d              Exit (/bye)
"""
_HELP_TEXTS = {"set": HELP_SET, "show": HELP_SHOW, "shortcut": HELP_SHORTCUTS}
_MISSING = {
    "license": "No license was specified for this model.",
    "system": "No system message was specified for this model.",
    "template": "No prompt template was specified for this model.",
    "modelfile": "No Modelfile was specified for this model.",
}


class Leave(Exception):
    """The user wants to go."""


class Commands:
    """Runs slash commands on the state of one conversation."""

    def __init__(
        self,
        manager: Callable[[], ManagerClient],
        session: Session,
        state: ReplState,
        editor: LineEditor,
        read_block: Callable[[str], str],
    ):
        self._manager = manager
        self._session = session
        self._out = session.out
        self._state = state
        self._editor = editor
        self._read_block = read_block

    def run(self, text: str) -> None:
        """Run one command line.   Raises: Leave, FtmanError."""
        word, _, rest = text.strip().partition(" ")
        rest = rest.strip()
        table: tuple[tuple[str, Callable[[str], None]], ...] = (
            ("/set", self._set),
            ("/show", self._show),
            ("/load", self._load),
            ("/save", self._save),
            ("/clear", self._clear),
            ("/list", self._list),
            ("/?", self._help),
            ("/help", self._help),
            ("/bye", self._leave),
            ("/exit", self._leave),
        )
        for name, act in table:
            if word.startswith(name):
                act(rest)
                return
        self._out.data(f"Unknown command '{word}'. Type /? for help")

    def _leave(self, rest: str) -> None:
        raise Leave

    def _help(self, rest: str) -> None:
        topics = (text for name, text in _HELP_TEXTS.items() if rest.lstrip("/").startswith(name))
        print(next(topics, HELP), file=self._out.stderr, flush=True)

    def _clear(self, rest: str) -> None:
        self._state.clear()
        self._out.data("Cleared session context")

    def _list(self, rest: str) -> None:
        models = self._manager().get("/api/tags").get("models") or []
        self._out.data(models_table(models, SYSTEM.wall()))

    def _load(self, rest: str) -> None:
        if not rest or " " in rest:
            self._out.data("Usage:\n  /load <modelname>")
            return
        try:
            shown = self._manager().post("/api/show", {"name": rest})
        except (NotFoundError, UsageError):
            self._out.data(f"Couldn't find model '{rest}'")
            return
        self._out.data(f"Loading model '{rest}'")
        load(self._manager(), self._session, rest, _kept(self._state.settings))
        self._state.model, self._state.shown = rest, shown
        self._state.messages, self._state.system = [], ""

    def _save(self, rest: str) -> None:
        if not rest or " " in rest:
            self._out.data("Usage:\n  /save <modelname>")
            return
        if not is_valid_name(rest):
            self._out.data(f"error: The model name '{rest}' is invalid")
            return
        state = self._state
        body: dict[str, Any] = {"model": rest, "from": state.model}
        spoken = [message for message in state.messages if message["role"] != "system"]
        if state.system:
            body["system"] = state.system
        if state.parameters:
            body["parameters"] = state.parameters
        if spoken:
            body["messages"] = spoken
        quiet = type(self._out)(self._out.stdout, self._out.stderr, quiet=True)
        follow(self._manager().stream("/api/create", body), quiet)
        self._out.data(f"Created new model '{rest}'")

    def _show(self, rest: str) -> None:
        shown = self._manager().post("/api/show", {"name": self._state.model})
        if rest == "info":
            print(sections_text(shown), file=self._out.stderr, end="", flush=True)
        elif rest == "effective":
            self._out.data(effective_table(shown) + "\n")
        elif rest == "experts":
            self._show_experts()
        elif rest == "parameters":
            self._show_parameters(str(shown.get("parameters") or ""))
        elif rest == "system" and self._state.system:
            self._out.data(self._state.system + "\n")
        elif rest in _MISSING:
            self._out.data(str(shown.get(rest) or _MISSING[rest]) + "\n")
        elif rest:
            self._out.data(f"Unknown command '/show {rest}'. Type /? for help")
        else:
            self._help("show")

    def _show_experts(self) -> None:
        """What `ft ps --experts` says of this model alone."""
        loaded = self._manager().get("/api/ft/experts").get("models") or ()
        lines = [experts_line(model) for model in entries_named(loaded, self._state.model)]
        self._out.data("\n".join(lines or [f"{self._state.model} is not loaded"]) + "\n")

    def _show_parameters(self, defined: str) -> None:
        self._out.data("Model defined parameters:")
        lines = defined.splitlines() or ["No additional parameters were specified for this model."]
        for line in lines:
            self._out.data(f"  {line}")
        if self._state.parameters:
            self._out.data("\nUser defined parameters:")
            for key, value in self._state.parameters.items():
                self._out.data(f"  {key:<30} {value}")
        self._out.data("")

    def _set(self, rest: str) -> None:
        word, _, value = rest.partition(" ")
        value = value.strip()
        switches: dict[str, Callable[[str], None]] = {
            "parameter": self._set_parameter,
            "system": self._set_system,
            "format": self._set_format,
            "noformat": self._set_noformat,
            "think": self._set_think,
            "nothink": self._set_nothink,
            "history": lambda _: self._editor.record(True),
            "nohistory": lambda _: self._editor.record(False),
            "wordwrap": self._set_wrap(True),
            "nowordwrap": self._set_wrap(False),
            "verbose": self._set_verbose(True),
            "quiet": self._set_verbose(False),
        }
        if not word:
            self._help("set")
        elif word in switches:
            switches[word](value)
        else:
            self._out.data(f"Unknown command '/set {word}'. Type /? for help")

    def _set_parameter(self, value: str) -> None:
        name, *texts = value.split() or [""]
        if not texts:
            self._out.data("Usage:\n  /set parameter <name> <value>")
            return
        try:
            typed = typed_parameters((name, text) for text in texts)
        except UsageError as error:
            self._out.data(f'Couldn\'t set parameter: "{error.message}"')
            return
        self._state.parameters.update(typed)
        self._out.data(f"Set parameter '{name}' to '{', '.join(texts)}'")

    def _set_system(self, value: str) -> None:
        if not value:
            self._out.data("Usage:\n  /set system <string>")
            return
        if value.startswith(QUOTES):
            value = self._read_block(value[len(QUOTES) :])
        elif len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        self._state.set_system(value)
        self._out.data("Set system message.")

    def _set_format(self, value: str) -> None:
        if value != "json":
            text = "Invalid or missing format. For 'json' mode use '/set format json'"
            self._out.data(text)
            return
        self._state.settings["format"] = "json"
        self._out.data("Set format to 'json' mode.")

    def _set_noformat(self, value: str) -> None:
        self._state.settings.pop("format", None)
        self._out.data("Disabled format.")

    def _set_think(self, value: str) -> None:
        think = think_value(value or "true", "/set think")
        if "thinking" not in (self._state.shown.get("capabilities") or ()):
            self._out.warn(f'model "{self._state.model}" does not support thinking output')
        self._state.settings["think"] = think
        self._out.data(f"Set 'think' mode to '{value}'." if value else "Set 'think' mode.")

    def _set_nothink(self, value: str) -> None:
        self._state.settings["think"] = False
        self._out.data("Set 'nothink' mode.")

    def _set_wrap(self, on: bool) -> Callable[[str], None]:
        def act(_: str) -> None:
            self._state.word_wrap = on
            self._out.data(f"Set '{'wordwrap' if on else 'nowordwrap'}' mode.")

        return act

    def _set_verbose(self, on: bool) -> Callable[[str], None]:
        def act(_: str) -> None:
            self._state.verbose = on
            self._out.data(f"Set '{'verbose' if on else 'quiet'}' mode.")

        return act


def _kept(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in ("keep_alive",) if key in settings}

"""The table of verbs and their arguments. Nothing heavy is imported here: help must be quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

Parser = argparse.ArgumentParser


@dataclass(frozen=True)
class Verb:
    """One verb: where its code is, what it is for, which arguments it takes.

    names: those that name models, and nothing else that could be meant.
    """

    name: str
    summary: str
    arguments: Callable[[Parser], None]
    module: str = ""
    aliases: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Import path of the module that runs it."""
        return f"ftman.cli.commands.{self.module or self.name}"


def _model(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL")


def _none(parser: Parser) -> None:
    del parser


def _serve(parser: Parser) -> None:
    # Used by ft itself when it starts a manager on another port; people set FT_HOST.
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.epilog = "Where it listens: FT_HOST=127.0.0.1:11435 ft serve. All settings: ft settings."
    text = "let other machines in without an API key"
    parser.add_argument("--insecure-no-key", action="store_true", help=text)


def _run(parser: Parser) -> None:
    _model(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="*", default=[])
    parser.add_argument("--keepalive", metavar="TIME", help="how long to stay loaded, as 5m")
    parser.add_argument("--verbose", action="store_true", help="show timings after each answer")
    parser.add_argument("--insecure", action="store_true", help="allow pulling over plain http")
    parser.add_argument("--nowordwrap", action="store_true", help="leave long lines alone")
    parser.add_argument("--format", metavar="FORMAT", help="json, or a JSON schema")
    parser.add_argument("--think", metavar="LEVEL", help="true, false, low, medium, high or max")
    parser.add_argument("--hidethinking", action="store_true", help="do not show the thinking")
    text = "embedding models: false refuses an input that is too long"
    parser.add_argument("--truncate", metavar="BOOL", nargs="?", const="true", help=text)
    parser.add_argument("--dimensions", metavar="N", type=int, help="embedding models: how many")


def _pull(parser: Parser) -> None:
    _model(parser)
    parser.add_argument("--insecure", action="store_true", help="allow plain http")
    parser.add_argument("--yes", action="store_true", help="never ask; fail if it cannot run here")
    parser.add_argument("--insist", action="store_true", help="pull even what cannot run here")
    parser.add_argument("--keep-source", action="store_true", help="so that it can be pushed")


def _verify(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", default="", help="default: all")
    parser.add_argument("--repair", action="store_true", help="fetch what is damaged again")


def _registry(parser: Parser) -> None:
    parser.add_argument("action", choices=("check",), help="ask the sources what they hold")
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="default: every model")
    parser.add_argument("--folder", metavar="DIR", help="a registry folder (default: the packaged)")
    parser.add_argument("--write", action="store_true", help="note the date and the sizes seen")


def _push(parser: Parser) -> None:
    _model(parser)
    parser.add_argument("--insecure", action="store_true", help="allow plain http")


def _prefix(parser: Parser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="")


def _ps(parser: Parser) -> None:
    _prefix(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--experts", action="store_true", help="what happens to routed experts")
    which.add_argument("--cache", action="store_true", help="what of prompts is reused")
    which.add_argument("--queue", action="store_true", help="who waits, how long, and for what")


def _memory(parser: Parser) -> None:
    _model(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--experts", metavar="N", type=int, help="experts kept on the device")
    which.add_argument("--kv", metavar="SIZE", help="memory for context, as 512MB or 2GiB")


def _fit(parser: Parser) -> None:
    _model(parser)
    parser.add_argument("--device", metavar="PROFILE", help="another machine, as rtx-4060-laptop")
    parser.add_argument("--context", metavar="N", type=int, help="tokens of context (32768)")


def _show(parser: Parser) -> None:
    _model(parser)
    for part in ("license", "modelfile", "parameters", "system", "template"):
        parser.add_argument(f"--{part}", action="store_true", help=f"only the {part}")
    parser.add_argument("-v", "--verbose", action="store_true", help="all metadata and tensors")
    text = "every setting in force for it, and who says so"
    parser.add_argument("--effective", action="store_true", help=text)
    text = "how its engine computes and keeps things, while it is loaded"
    parser.add_argument("--engine", action="store_true", help=text)


def _rm(parser: Parser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="+")


def _cp(parser: Parser) -> None:
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("destination", metavar="DESTINATION")


def _create(parser: Parser) -> None:
    _model(parser)
    parser.add_argument("-f", "--file", help="the Modelfile (default: ./Modelfile)")
    parser.add_argument("-q", "--quantize", metavar="TYPE", help="q8_0, q4_0 or mxfp4")
    parser.add_argument("--draft-quantize", metavar="TYPE", help="not built yet")
    parser.add_argument("--experimental", action="store_true", help=argparse.SUPPRESS)


def _search(parser: Parser) -> None:
    parser.add_argument("text", metavar="TEXT", nargs="*")


def _calibrate(parser: Parser) -> None:
    text = "an installed model, whose disk is measured too"
    parser.add_argument("model", metavar="MODEL", nargs="?", default="", help=text)


def _bench(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL")
    text = "time of each operator against what memory and arithmetic allow"
    parser.add_argument("--profile", action="store_true", required=True, help=text)


def _logs(parser: Parser) -> None:
    text = "a model, for its engine's log; default: the manager's own"
    parser.add_argument("name", metavar="MODEL", nargs="?", default="manager", help=text)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--list", action="store_true", help="which logs there are")
    which.add_argument("-f", "--follow", action="store_true", help="wait for more")
    parser.add_argument("-n", "--lines", type=int, default=50, help="how many lines (50)")


def _launch(parser: Parser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="claude, codex, opencode, pi, qwen or cline")
    text = "for the agent itself"
    parser.add_argument("args", metavar="-- ARGS", nargs="*", default=[], help=text)
    parser.add_argument("--model", metavar="MODEL", default="", help="default: the only one")
    parser.add_argument(
        "--config-only", "--config", action="store_true", help="write its settings, do not start it"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--restore", action="store_true", help="put its settings back as they were")
    parser.add_argument("-y", "--yes", action="store_true", help="fetch the model if it is missing")


def _export(parser: Parser) -> None:
    _model(parser)
    parser.add_argument("folder", metavar="FOLDER", help="a new folder, as on a stick")


def _import(parser: Parser) -> None:
    text = "a folder of ft export, or a file or folder that ft pull takes"
    parser.add_argument("names", metavar="PATH", nargs="*", help=text)
    parser.add_argument("--name", default="", help="install it under another name")
    text = "take models over from an Ollama here; without a NAME: list them"
    parser.add_argument("--ollama", action="store_true", help=text)
    parser.add_argument("--all", action="store_true", help="with --ollama: every one of them")
    text = "with --ollama: where its models lie"
    parser.add_argument("--from", dest="source", metavar="FOLDER", default="", help=text)
    text = "keep the weights as they came too: a second name for the file, or a copy"
    parser.add_argument("--keep-source", action="store_true", help=text)


def _doctor(parser: Parser) -> None:
    text = "write what it says and the ends of the logs to FILE (.tar.gz), without secrets"
    parser.add_argument("--bundle", metavar="FILE", default="", help=text)


def _df(parser: Parser) -> None:
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="each model, and what it shares"
    )


def _gc(parser: Parser) -> None:
    parser.add_argument("--explain", action="store_true", help="only say what would be removed")
    parser.add_argument("--partials", action="store_true", help="drop interrupted pulls as well")


def _jobs(parser: Parser) -> None:
    actions = ("list", "pause", "resume", "cancel")
    parser.add_argument("action", choices=actions, nargs="?", default="list")
    parser.add_argument("job", metavar="JOB", nargs="?", default="", help="its id, or its model")
    parser.add_argument("--all", action="store_true", help="those that ended as well")


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _key(parser: Parser) -> None:
    parser.add_argument("action", choices=("create", "list", "rm"))
    parser.add_argument("name", metavar="NAME", nargs="?", default="")
    text = "use: ask models; manage: also pull, remove, change (use)"
    parser.add_argument("--rights", choices=("use", "manage"), help=text)


def _autostart(parser: Parser) -> None:
    parser.add_argument("action", choices=("enable", "disable", "status", "print"))


VERBS: tuple[Verb, ...] = (
    Verb("serve", "Run the manager in the foreground", _serve, aliases=("start",)),
    Verb("run", "Chat with a model, or answer one prompt", _run),
    Verb("pull", "Fetch and convert a model", _pull),
    Verb("create", "Build a model from a Modelfile", _create),
    Verb("push", "Send a model to a registry", _push),
    Verb("list", "List installed models", _prefix, module="listing", aliases=("ls",)),
    Verb("show", "Show what a model is", _show, names=("model",)),
    Verb("ps", "List loaded models", _ps),
    Verb("memory", "Divide a loaded model's memory anew", _memory, names=("model",)),
    Verb("fit", "Say what a model will do on a machine", _fit),
    Verb("stop", "Unload a model", _model, names=("model",)),
    Verb("rm", "Remove models", _rm, names=("models",)),
    Verb("cp", "Give a model a second name", _cp, names=("source", "destination")),
    Verb("search", "Search the index of known models", _search),
    Verb("calibrate", "Measure this machine's rates", _calibrate, names=("model",)),
    Verb("bench", "Show where the time of a model's steps goes", _bench, names=("model",)),
    Verb("status", "Say whether the manager runs, and where", _none),
    Verb("shutdown", "End the manager and its engines", _none),
    Verb("df", "Show what takes disk space", _df),
    Verb("gc", "Remove what no model needs", _gc),
    Verb("jobs", "List, pause, resume and cancel pulls", _jobs),
    Verb("export", "Write a model to a folder, to carry it", _export, names=("model",)),
    Verb("import", "Take in models that lie on this machine", _import, module="importing"),
    Verb("verify", "Check installed models, and repair them", _verify, names=("model",)),
    Verb("registry", "Check the index of known models", _registry),
    Verb("logs", "Show the manager's log", _logs),
    Verb("launch", "Start a coding agent on a model here", _launch, names=("model",)),
    Verb("autostart", "Start the manager at login", _autostart),
    Verb("doctor", "Say what is right and wrong here", _doctor),
    Verb("settings", "Show every setting and who says so", _none),
    Verb("key", "Make and remove API keys", _key),
    Verb("completion", "Print a script that completes ft's words", _completion),
    Verb("version", "Show the version", _none),
)
NO_ACCOUNT = ("signin", "login", "signout", "logout")
"""Verbs of Ollama's that speak of an account with its makers, which ft has not."""


def verb_named(word: str) -> Verb | None:
    """The verb of that name or alias."""
    return next((verb for verb in VERBS if word in (verb.name, *verb.aliases)), None)


def parser_of(verb: Verb, factory: type[Parser]) -> Parser:
    """The argument parser of one verb, with the flags all verbs share."""
    parser = factory(prog=f"ft {verb.name}", description=verb.summary + ".", allow_abbrev=False)
    verb.arguments(parser)
    parser.add_argument("--json", action="store_true", dest="as_json", help="JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress, no notes")
    return parser

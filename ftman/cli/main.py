"""Entry point of `ft`: find the verb, parse its arguments, run it, turn errors into exit codes.

Exit codes: 0 done, 1 failed, 2 usage, 3 cannot fit, 4 network, 5 not found, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from ftman import __version__
from ftman.cli.output import Output, error_text, error_value, make_output
from ftman.cli.session import make_session
from ftman.cli.verbs import NO_ACCOUNT, VERBS, Verb, parser_of, verb_named
from ftman.config import engine_environment, load_config
from ftman.errors import FtmanError, UnsupportedError, UsageError, failure_of
from ftman.folders import require_folders
from ftman.names import parse_name

EXIT_INTERRUPTED = 130
EXIT_FAILED = 1
COMPLETE = "__complete"

_ENVIRONMENT = (
    ("FT_HOST", "address of the manager (127.0.0.1:11434)"),
    ("FT_HOME", "where everything lies"),
    ("FT_MODELS", "where models lie"),
    ("FT_KEEP_ALIVE", "how long models stay loaded (5m)"),
    ("FT_CONTEXT_LENGTH", "default context window in tokens"),
    ("FT_NUM_PARALLEL", "requests that a model answers at once (4)"),
    ("FT_MAX_QUEUE", "requests that may wait (512)"),
    ("FT_ORIGINS", "further web pages that may ask, by commas"),
    ("FT_DEVICE", "auto, cpu, ..."),
    ("FT_PREPARE_ENGINE", "off: keep no process ready for the next model (auto)"),
    ("FT_API_KEY", "the key to show to a manager that asks for one"),
    ("FT_TLS_CERT", "certificate file, with FT_TLS_KEY: serve https"),
    ("FT_DEBUG", "1: tracebacks and more in the log"),
    ("NO_COLOR", "no colours"),
)


class _ArgumentParser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"See: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ft` with these arguments; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    environment = engine_environment()
    no_colour = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    out = make_output(as_json="--json" in words, quiet="--quiet" in words, no_colour=no_colour)
    try:
        return _dispatch(words, no_colour)
    except FtmanError as error:
        return _failed(error, out)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has what it wanted; nothing more can be said to it.
        sys.stdout = None
        return 0
    except UnicodeError as error:  # of the words given, or of what stdin brings
        hint = "Convert it first, as with iconv."
        return _failed(UsageError(f"a word or the input is not UTF-8: {error}", hint=hint), out)
    except Exception as error:  # the root of the process
        text = f"{type(error).__name__}: {error}"
        hint = "FT_DEBUG=1 shows where. Please report it."
        ours = FtmanError(f"ft itself failed: {text}", hint=hint)
        return _failed(failure_of(error) or ours, out)


def _dispatch(words: list[str], no_colour: bool) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        return _help(words[1:])
    if words[0] in ("-v", "--version"):
        words = ["version", *words[1:]]
    if words[0] == COMPLETE:
        return _complete(words[1:])
    verb = verb_named(words[0])
    if verb is None:
        raise _unknown(words[0])
    args = _parsed(verb, words[1:])
    config = load_config()
    out = make_output(as_json=args.as_json, quiet=args.quiet, no_colour=no_colour)
    for note in config.notes:
        out.warn(note)
    module = importlib.import_module(verb.path)
    try:
        code: int = module.run(args, make_session(config, out))
    except OSError:
        require_folders(config)  # what could not be done there is no fault of the verb's
        raise
    return code


def _complete(words: list[str]) -> int:
    # Only a shell's completion comes here, and it throws away what goes wrong.
    from ftman.cli.complete import candidates

    print("\n".join(candidates(words)))
    return 0


def _parsed(verb: Verb, words: list[str]) -> argparse.Namespace:
    parser = parser_of(verb, _ArgumentParser)
    # `--think` alone means true, and must not take the next word as its value.
    end = words.index("--") if "--" in words else len(words)
    words = ["--think=true" if w == "--think" and i < end else w for i, w in enumerate(words)]
    try:
        args = parser.parse_intermixed_args(words)
    except TypeError as error:
        raise UsageError(str(error), hint=f"See: ft {verb.name} --help") from None
    for argument in verb.names:
        given = getattr(args, argument)
        for name in given if isinstance(given, list) else filter(None, [given]):
            parse_name(name)
    return args


def _help(words: Sequence[str]) -> int:
    if words:
        verb = verb_named(words[0])
        if verb is None:
            raise _unknown(words[0])
        print(parser_of(verb, _ArgumentParser).format_help(), end="")
        return 0
    lines = ["Run mixture-of-experts models on the machine you already own.", ""]
    lines += ["Usage: ft VERB [ARGUMENTS]", "", "Verbs:"]
    for verb in VERBS:
        name = ", ".join((verb.name, *verb.aliases))
        lines.append(f"  {name:<14} {verb.summary}")
    lines += [f"  {'help':<14} Help on a verb: ft help run", "", "Environment Variables:"]
    lines += [f"  {name:<18} {meaning}" for name, meaning in _ENVIRONMENT]
    lines += ["", "OLLAMA_HOST and its like count where FT_HOST and its like are not set."]
    lines += [f"ft settings shows all. ft {__version__}; every verb knows --help, --json, --quiet."]
    print("\n".join(lines))
    return 0


def _unknown(word: str) -> FtmanError:
    if word in NO_ACCOUNT:
        return UnsupportedError(
            f"ft {word}: there is no account, ft speaks with no company's cloud",
            hint="Registries that ask for a key are shown this machine's own; its public half,\n"
            "made at the first ft push, is keys/registry.pub in FT_HOME.",
        )
    names = [name for verb in VERBS for name in (verb.name, *verb.aliases)]
    close = difflib.get_close_matches(word, names, 3)
    hint = f"Did you mean: {', '.join('ft ' + name for name in close)}?" if close else ""
    shown = word[:40].encode("unicode_escape").decode() if not word.isprintable() else word[:40]
    return UsageError(f'unknown command "{shown}" for "ft"', hint=hint or "See: ft --help")


def _failed(error: FtmanError, out: Output) -> int:
    if _debugging():
        import traceback  # only ever needed here

        traceback.print_exc(file=sys.stderr)
    if out.as_json:
        out.json_line(error_value(error))
    print(error_text(error), file=sys.stderr, flush=True)
    return error.exit_code


def _debugging() -> bool:
    try:
        return load_config().debug
    except (FtmanError, OSError):
        return False

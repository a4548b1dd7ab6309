"""`ft run MODEL [PROMPT]`: one answer, or a conversation on a terminal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from ftman.cli.answer import AnswerView, timings_text
from ftman.cli.client import ManagerClient
from ftman.cli.commands.pull import pull
from ftman.cli.loading import load
from ftman.cli.repl import Repl
from ftman.cli.repl_state import ReplState
from ftman.cli.session import Session
from ftman.config import parse_duration
from ftman.errors import NotFoundError, UnsupportedError, UsageError

THINK_LEVELS = ("low", "medium", "high", "max")


def run(args: argparse.Namespace, session: Session) -> int:
    """Answer one prompt, or talk."""
    settings = request_settings(args)
    out = session.out
    prompt = gather_prompt(args, session)
    talk = not prompt and session.stdin.isatty() and out.stdout_is_tty and not out.as_json
    with session.manager() as manager:
        shown = _shown_or_pulled(manager, session, args)
        kept = {key: settings[key] for key in ("keep_alive",) if key in settings}
        load(manager, session, args.model, kept)
        if talk:
            state = ReplState(args.model, shown, settings)
            state.word_wrap = not args.nowordwrap
            state.verbose = args.verbose
            state.hide_thinking = args.hidethinking
            return Repl(manager, session, state).run()
        if prompt:
            _answer(manager, session, args, {**settings, "prompt": prompt})
    return 0


def request_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of every request that the flags ask for.   Raises: UsageError."""
    settings: dict[str, Any] = {}
    if args.truncate or args.dimensions is not None:
        raise UnsupportedError("--truncate and --dimensions need embeddings, not built yet")
    if args.keepalive is not None:
        try:
            parse_duration(args.keepalive)
        except ValueError as error:
            raise UsageError(str(error), hint="Write --keepalive 5m, 1h30m or -1s.") from None
        settings["keep_alive"] = args.keepalive
    if args.format is not None:
        settings["format"] = _format(args.format)
    if args.think is not None:
        settings["think"] = _think(args.think)
    return settings


def gather_prompt(args: argparse.Namespace, session: Session) -> str:
    """Piped stdin, then the arguments, joined by one space."""
    parts = list(args.prompt)
    if not session.stdin.isatty():
        piped = session.stdin.read()
        if piped:
            parts.insert(0, piped)
    return " ".join(parts)


def _shown_or_pulled(
    manager: ManagerClient, session: Session, args: argparse.Namespace
) -> Mapping[str, Any]:
    try:
        return manager.post("/api/show", {"name": args.model})
    except NotFoundError:
        pull(manager, session, args.model, insecure=args.insecure)
    return manager.post("/api/show", {"name": args.model})


def _answer(
    manager: ManagerClient, session: Session, args: argparse.Namespace, body: Mapping[str, Any]
) -> None:
    out = session.out
    view = AnswerView(out, wrap=not args.nowordwrap, hide_thinking=args.hidethinking)
    final = view.show(manager.stream("/api/generate", {"model": args.model, **body}))
    if not out.as_json:
        out.data("\n")
    if args.verbose:
        out.note(timings_text(final))


def _think(text: str) -> bool | str:
    if text in ("true", "false"):
        return text == "true"
    if text in THINK_LEVELS:
        return text
    raise UsageError(
        f'invalid value for --think: "{text}" (must be true, false, high, medium, low, or max)'
    )


def _format(text: str) -> Any:
    if text == "json":
        return text
    try:
        schema = json.loads(text)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise UsageError(
            f"invalid format: {text[:40]!r}; expected json or a JSON schema object",
            hint='Write --format json, or --format \'{"type": "object", ...}\'.',
        )
    return schema

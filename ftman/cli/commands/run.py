"""`ft run MODEL [PROMPT]`: one answer, or a conversation on a terminal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from ftman.cli.answer import AnswerView, timings_text
from ftman.cli.client import DID_YOU_MEAN, ManagerClient
from ftman.cli.commands.pull import is_path, pull
from ftman.cli.loading import load
from ftman.cli.repl import Repl
from ftman.cli.repl_state import ReplState, think_value
from ftman.cli.session import Session
from ftman.config import parse_duration
from ftman.errors import NotFoundError, UsageError
from ftman.names import parse_name


def run(args: argparse.Namespace, session: Session) -> int:
    """Answer one prompt, or talk."""
    settings = request_settings(args)
    if is_path(args.model):
        raise UsageError(
            f"{args.model} is a path, not the name of a model",
            hint=f"Take it in first, then run it by its name: ft pull {args.model}",
        )
    parse_name(args.model)
    out = session.out
    prompt = gather_prompt(args, session)
    talk = not prompt and session.stdin.isatty() and out.stdout_is_tty and not out.as_json
    with session.manager() as manager:
        shown = _shown_or_pulled(manager, session, args)
        if _only_embeds(shown):
            return embed(manager, session, args, prompt)
        _refuse_embedding_flags(args)
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
    if args.truncate not in (None, "true", "false"):
        raise UsageError(f'invalid value for --truncate: "{args.truncate}" (true or false)')
    if args.dimensions is not None and args.dimensions < 1:
        raise UsageError(f"--dimensions must be 1 or more, got {args.dimensions}")
    if args.keepalive is not None:
        try:
            parse_duration(args.keepalive)
        except ValueError as error:
            raise UsageError(str(error), hint="Write --keepalive 5m, 1h30m or -1s.") from None
        settings["keep_alive"] = args.keepalive
    if args.format is not None:
        settings["format"] = _format(args.format)
    if args.think is not None:
        settings["think"] = think_value(args.think, "--think")
    return settings


def gather_prompt(args: argparse.Namespace, session: Session) -> str:
    """Piped stdin, then the arguments, joined by one space."""
    parts = list(args.prompt)
    if not session.stdin.isatty():
        piped = session.stdin.read()
        if piped:
            parts.insert(0, piped)
    return " ".join(parts)


def embed(manager: ManagerClient, session: Session, args: argparse.Namespace, text: str) -> int:
    """Print the vector of a text as one line of JSON.   Raises: UsageError without a text."""
    if not text:
        raise UsageError(
            "embedding models require input text", hint=f'ft run {args.model} "your text here"'
        )
    body: dict[str, Any] = {"model": args.model, "input": text}
    if args.truncate is not None:
        body["truncate"] = args.truncate == "true"
    if args.dimensions is not None:
        body["dimensions"] = args.dimensions
    if args.keepalive is not None:
        body["keep_alive"] = args.keepalive
    reply = manager.post("/api/embed", body, patient=True)
    if reply.get("warning"):
        session.out.warn(str(reply["warning"]))
    if session.out.as_json:
        session.out.json_line(reply)
    else:
        session.out.data(json.dumps(reply["embeddings"][0]))
    return 0


def _only_embeds(shown: Mapping[str, Any]) -> bool:
    able = shown.get("capabilities") or ()
    return "embedding" in able and "completion" not in able


def _refuse_embedding_flags(args: argparse.Namespace) -> None:
    if args.truncate is not None or args.dimensions is not None:
        raise UsageError(
            f"--truncate and --dimensions are for embedding models, which {args.model} is not",
            hint=f"See what it can do: ft show {args.model}",
        )


def _shown_or_pulled(
    manager: ManagerClient, session: Session, args: argparse.Namespace
) -> Mapping[str, Any]:
    try:
        return manager.post("/api/show", {"name": args.model})
    except NotFoundError as missing:
        try:
            pull(manager, session, args.model, insecure=args.insecure)
        except NotFoundError as error:
            if missing.hint.startswith(DID_YOU_MEAN):
                error.hint = f"{missing.hint}\n{error.hint}"
            raise
    return manager.post("/api/show", {"name": args.model})


def _answer(
    manager: ManagerClient, session: Session, args: argparse.Namespace, body: Mapping[str, Any]
) -> None:
    out = session.out
    view = AnswerView(out, wrap=not args.nowordwrap, hide_thinking=args.hidethinking)
    final = view.show(manager.stream("/api/generate", {"model": args.model, **body}))
    if args.verbose:
        out.note(timings_text(final))


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

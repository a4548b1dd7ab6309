"""`ft import PATH | --ollama [NAME...]`: models that lie on this machine already.

PATH is a folder of `ft export`, or what `ft pull PATH` takes. --ollama reads the store of an Ollama
here: the weights are converted from where they lie, and nothing is written into it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ftman.cli.client import ManagerClient, is_local
from ftman.cli.commands.pull import Choice, pull
from ftman.cli.output import table
from ftman.cli.progress import follow
from ftman.cli.session import Session
from ftman.cli.units import human_bytes
from ftman.config import engine_environment
from ftman.errors import NotFoundError, UsageError
from ftman.names import ModelName, parse_name
from ftman.pull.offline import is_exported
from ftman.pull.ollama_store import StoredModel, find_store, place_of, store_models

HEADER = ("NAME", "SIZE", "NOTE")


def run(args: argparse.Namespace, session: Session) -> int:
    """Take models in, or list what an Ollama here has."""
    if args.ollama:
        return _adopt(args, session)
    path, exported = _checked(args)
    with session.manager() as manager:
        _require_here(manager)
        if exported:
            body = {"path": str(path), "name": args.name, "stream": True}
            follow(manager.stream("/api/ft/import", body), session.out)
            return 0
        choice = Choice(keep_source=args.keep_source)
        pull(manager, session, str(path), insecure=False, choice=choice)
    return 0


def _checked(args: argparse.Namespace) -> tuple[Path, bool]:
    """The folder or file, and whether ft export made it.   Raises: UsageError, NotFoundError."""
    if len(args.names) != 1:
        raise UsageError("name one folder or file", hint="ft import FOLDER; or: ft import --ollama")
    if args.source or args.all:
        flag = "--from" if args.source else "--all"
        raise UsageError(f"{flag} goes with --ollama", hint=f"ft import --ollama {flag} ...")
    path = Path(args.names[0]).expanduser().absolute()
    exported = is_exported(path)
    if args.name and not exported:
        raise UsageError(
            f"--name goes with a folder of ft export, which {path} is not",
            hint=f"ft pull {path}, then ft cp",
        )
    if args.name:
        parse_name(args.name)
    if args.keep_source and exported:
        raise UsageError(f"{path} is of ft export and holds no source that could be kept")
    if not path.exists():
        raise NotFoundError(f"{path} does not exist", hint="Name a folder or a file.")
    return path, exported


def _adopt(args: argparse.Namespace, session: Session) -> int:
    if args.name:
        raise UsageError("--name goes with a folder of ft export", hint="Afterwards: ft cp")
    if args.all and args.names:
        raise UsageError("--all takes every model: leave the names out")
    given = Path(args.source).expanduser().absolute() if args.source else None
    if given is not None and not given.is_dir():
        raise NotFoundError(f"{given} is no folder", hint="Name the one with Ollama's models.")
    folder = given or find_store(engine_environment(), Path.home())
    models = store_models(folder)
    if not args.names and not args.all:
        _list(folder, models, session)
        return 0
    wanted = [model for model in models if not model.problem] if args.all else []
    wanted += [_named(text, models, folder) for text in args.names]
    with session.manager() as manager:
        _require_here(manager)
        for model in wanted:
            session.out.note(
                f"{model.name.short}   {human_bytes(model.bytes)} in {folder}, read there and left "
                "as it is; what is converted comes on top of that:"
            )
            choice = Choice(keep_source=args.keep_source)
            pull(manager, session, place_of(folder, model.name), insecure=False, choice=choice)
    return 0


def _named(text: str, models: list[StoredModel], folder: Path) -> StoredModel:
    key = parse_name(text).key
    found = next((model for model in models if model.name.key == key), None)
    if found is None:
        names = ", ".join(model.name.short for model in models) or "none"
        raise NotFoundError(f"{folder} has no model {text[:60]!r}", hint=f"It has: {names}")
    if found.problem:
        raise UsageError(f"{_short(found.name)} cannot be taken over: {found.problem}")
    return found


def _list(folder: Path, models: list[StoredModel], session: Session) -> None:
    if session.out.as_json:
        found = [
            {"name": model.name.short, "bytes": model.bytes, "problem": model.problem}
            for model in models
        ]
        session.out.json_line({"folder": str(folder), "models": found})
        return
    rows = [(_short(m.name), human_bytes(m.bytes) if m.bytes else "-", m.problem) for m in models]
    session.out.data(table(HEADER, rows))
    session.out.note(f"store: {folder}\nTake one over: ft import --ollama NAME")


def _short(name: ModelName) -> str:
    return name.short


def _require_here(manager: ManagerClient) -> None:
    if not is_local(manager.url):
        raise UsageError(
            f"the manager at {manager.url} is on another machine and cannot read files of this one",
            hint="Run ft import there.",
        )

"""`ft launch AGENT [-- ARGS]`: point a coding agent at our manager, then run it."""

from __future__ import annotations

import argparse
import difflib
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftman.cli.agent_files import Change, apply, change_for, restore
from ftman.cli.agents import AGENTS, KEY, Agent, Plan, Target, agent_named
from ftman.cli.client import ManagerClient
from ftman.cli.commands.pull import Choice, pull
from ftman.cli.session import Session
from ftman.config import engine_environment
from ftman.errors import NotFoundError, UnsupportedError, UsageError
from ftman.keys import keys_path, read_keys

SHOWN_MODELS = 8
SMALL_CONTEXT = 16384
NOWHERE = Target("", "", 1)
"""For asking a plan only which files it writes."""


def run(args: argparse.Namespace, session: Session) -> int:
    """Write the agent's settings and start it; returns its exit code."""
    agent = _agent(args.agent)
    if args.args and args.config_only:
        raise UsageError("words after -- are for the agent, which --config-only does not start")
    if args.restore and (args.args or args.model or args.config_only or args.dry_run or args.yes):
        raise UsageError("--restore goes with no other option: it only puts settings back")
    environ = engine_environment()
    if args.restore:
        return _restore(agent, environ, session)
    with session.manager() as manager:
        if args.yes and args.model:
            _fetched(manager, session, args.model)
        target = replace(_target(manager, args.model), key=_key(session) or KEY)
    plan = agent.plan(target, Path.home(), environ)
    argv = (*plan.argv, *args.args)
    changes = [change for change in map(change_for, plan.files) if change.needed]
    _warn(agent, target, session)
    if args.dry_run:
        _tell(agent, target, plan, changes, argv, session)
        return 0
    program = None if args.config_only else _program(agent, argv[0], environ)
    _write(changes, session)
    if program is None:
        _tell(agent, target, plan, [], argv, session)
        return 0
    return _start((program, *argv[1:]), {**environ, **plan.environ})


def _restore(agent: Agent, environ: Mapping[str, str], session: Session) -> int:
    """Undo what `ft launch` wrote for this agent."""
    undone = []
    for entry in agent.plan(NOWHERE, Path.home(), environ).files:
        found = restore(entry)
        if found is not None:
            aside, back = found
            was = "as it was before" if back else "gone again, as it was"
            session.out.note(f"{entry.path} is {was}; what ft had made of it: {aside}")
            undone.append(str(entry.path))
    if session.out.as_json:
        session.out.json_line({"agent": agent.name, "restored": undone})
    elif not undone:
        session.out.note(f"ft has written nothing for {agent.title}; nothing to restore")
    return 0


def _fetched(manager: ManagerClient, session: Session, name: str) -> None:
    try:
        manager.post("/api/show", {"model": name})
    except NotFoundError:
        pull(manager, session, name, insecure=False, choice=Choice(ask=False))


def _key(session: Session) -> str:
    """The key the agent shall show, "" where none is asked for.   Raises: UsageError."""
    given = session.config.api_key
    if not given and read_keys(keys_path(session.config.paths)):
        raise UsageError(
            "this manager asks for API keys, and the agent needs one of its own",
            hint="Make one: ft key create AGENT; then: FT_API_KEY=KEY ft launch ...",
        )
    return given


def _agent(name: str) -> Agent:
    found = agent_named(name)
    if found is not None:
        return found
    names = [agent.name for agent in AGENTS]
    close = difflib.get_close_matches(name, names, 1)
    hint = f"Did you mean: ft launch {close[0]}?" if close else f"There are: {', '.join(names)}"
    raise UsageError(f'ft knows no agent "{name}"', hint=hint)


def _target(manager: ManagerClient, given: str) -> Target:
    name = given or _only_model(manager)
    try:
        shown = manager.post("/api/show", {"model": name})
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=f"Fetch it first: ft pull {name}") from None
    able = shown.get("capabilities") or ()
    if "tools" not in able:
        raise UnsupportedError(
            f"{name} cannot call tools, and coding agents do nothing without",
            hint=f"See what it can do: ft show {name}",
        )
    context_tokens = int(manager.get(f"/v1/models/{name}")["max_model_len"])
    return Target(manager.url.rstrip("/"), name, context_tokens, "thinking" in able)


def _only_model(manager: ManagerClient) -> str:
    models = [str(model["name"]) for model in manager.get("/api/tags").get("models") or ()]
    if len(models) == 1:
        return models[0]
    if not models:
        raise NotFoundError("no model is installed", hint="Fetch one first: ft pull MODEL")
    shown = ", ".join(models[:SHOWN_MODELS]) + (", ..." if len(models) > SHOWN_MODELS else "")
    raise UsageError(
        "say which model the agent shall use: --model MODEL", hint=f"There are: {shown}"
    )


def _warn(agent: Agent, target: Target, session: Session) -> None:
    if target.context_tokens < SMALL_CONTEXT:
        session.out.warn(
            f"{target.model} has a context of {target.context_tokens} tokens; {agent.title} sends "
            "thousands before your first word. A larger one: FT_CONTEXT_LENGTH=32768 ft serve"
        )


def _program(agent: Agent, name: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise NotFoundError(
            f"{agent.title} is not installed: there is no program {name}",
            hint=f"Install it: {agent.install}\n"
            f"or only write its settings: ft launch {agent.name} --config-only",
        )
    return found


def _write(changes: list[Change], session: Session) -> None:
    for change in changes:
        kept = apply(change)
        said = f"; what was there before: {kept}" if kept else ""
        session.out.note(f"wrote {change.path}{said}")


def _tell(
    agent: Agent,
    target: Target,
    plan: Plan,
    changes: list[Change],
    argv: tuple[str, ...],
    session: Session,
) -> None:
    """What was done or would be done; with --dry-run the content of each file too."""
    if session.out.as_json:
        value: dict[str, Any] = {
            "agent": agent.name,
            "url": target.url,
            "model": target.model,
            "context_tokens": target.context_tokens,
            "files": [str(entry.path) for entry in plan.files],
            "would_write": {str(change.path): change.new.decode() for change in changes},
            "environ": dict(plan.environ),
            "argv": list(argv),
        }
        session.out.json_line(value)
        return
    for change in changes:
        verb = "create" if change.old is None else "change (after a copy of it is made)"
        session.out.data(f"would {verb} {change.path}:\n{change.new.decode()}")
    words = [f"{name}={shlex.quote(value)}" for name, value in plan.environ.items()]
    session.out.data(" ".join([*words, *map(shlex.quote, argv)]))


def _start(argv: tuple[str, ...], environ: Mapping[str, str]) -> int:
    child = subprocess.Popen(argv, env=dict(environ))
    # From here on Ctrl-C is the agent's alone: it asks before it ends, and ft waits for it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return child.wait()
    finally:
        signal.signal(signal.SIGINT, before)

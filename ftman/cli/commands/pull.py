"""`ft pull MODEL`: fetch, verify and convert; interrupted work is taken up by the same command."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ftman.cli.client import ManagerClient
from ftman.cli.output import safe
from ftman.cli.progress import follow
from ftman.cli.pull_plan import plan_text, problem
from ftman.cli.session import Session
from ftman.errors import CannotFitError, FtmanError, NotFoundError


def run(args: argparse.Namespace, session: Session) -> int:
    """Pull one model."""
    with session.manager() as manager:
        choice = Choice(ask=not args.yes, insist=args.insist, keep_source=args.keep_source)
        pull(manager, session, args.model, insecure=args.insecure, choice=choice)
    return 0


@dataclass(frozen=True)
class Choice:
    """What to do about a model that cannot run here: ask where a person is there, or insist.

    keep_source: the fetched files stay beside the converted ones.
    """

    ask: bool = True
    insist: bool = False
    keep_source: bool = False


def pull(
    manager: ManagerClient,
    session: Session,
    name: str,
    *,
    insecure: bool,
    choice: Choice | None = None,
) -> None:
    """Say what it costs, then pull with progress.

    Raises: FtmanError, CannotFitError, KeyboardInterrupt (after saying how to resume).
    """
    _show_plan(manager, session, name, insecure, choice or Choice())
    body = {"name": place_or_name(name), "insecure": insecure, "stream": True}
    if choice is not None and choice.keep_source:
        body["keep_source"] = True
    try:
        follow(manager.stream("/api/pull", body), session.out)
    except NotFoundError as error:
        if error.hint:
            raise
        raise NotFoundError(error.message, hint=f"See what there is: ft search {name}") from None
    except KeyboardInterrupt:
        session.out.note(f"stopped; what was fetched is kept. ft pull {name} resumes")
        raise


def _show_plan(
    manager: ManagerClient, session: Session, name: str, insecure: bool, choice: Choice
) -> None:
    try:
        plan = manager.post(
            "/api/ft/plan", {"model": place_or_name(name), "insecure": insecure}, patient=True
        )
    except FtmanError:
        # The pull meets the same trouble, and tells of it.
        return
    if not plan or plan.get("up_to_date"):
        return
    if session.out.as_json:
        session.out.json_line({"status": "plan", "plan": plan})
    else:
        session.out.note(plan_text(plan))
    trouble = problem(plan)
    if not trouble or choice.insist:
        return
    if choice.ask and session.stdin.isatty() and session.out.stderr_is_tty:
        print(f"{safe(trouble)}\nPull it all the same? [y/N] ", end="", file=session.out.stderr)
        session.out.stderr.flush()
        if session.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise CannotFitError(
        trouble,
        hint=f"A smaller build may fit: ft search {name.partition(':')[0]}; "
        f"another machine: ft fit {name} --device PROFILE; all the same: ft pull {name} --insist",
    )


def place_or_name(text: str) -> str:
    """A text as typed: a file or folder of this machine as file://..., everything else as it is."""
    if not text.startswith(("/", "./", "../", "~")):
        return text
    try:
        path = Path(text).expanduser().absolute()
        return path.resolve().as_uri() if path.exists() else text
    except (OSError, ValueError, RuntimeError):
        return text

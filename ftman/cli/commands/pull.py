"""`ft pull MODEL`: fetch, verify and convert; interrupted work is taken up by the same command."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from pathlib import Path

from ftman.cli.client import ManagerClient
from ftman.cli.output import safe
from ftman.cli.progress import follow
from ftman.cli.pull_plan import plan_text, problem
from ftman.cli.session import Session
from ftman.errors import CannotFitError, FtmanError, NotFoundError
from ftman.names import parse_name, printable


def run(args: argparse.Namespace, session: Session) -> int:
    """Pull one model."""
    if "://" not in place_or_name(args.model):
        parse_name(args.model)
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
        if _there(name) and not is_path(name):
            hint = f"To take in the file or folder of that name: ft pull ./{name}"
            raise NotFoundError(error.message, hint=hint) from None
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
    """A text as typed: a file or folder of this machine as file://..., everything else as it is.

    Raises: NotFoundError when a path leads to nothing.
    """
    if not is_path(text):
        return text
    place = _there(text)
    if place is None:
        raise NotFoundError(f"there is no file or folder {printable(text)}", hint="Check the path.")
    return place.as_uri()


def _there(text: str) -> Path | None:
    """The file or folder of this machine that a text names."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = Path(text).expanduser().absolute()
        if path.exists():
            return path.resolve()
    return None


def is_path(text: str) -> bool:
    """Whether a text is written as a path, and so is no model's name."""
    return text.startswith(("/", "./", "../", "~"))

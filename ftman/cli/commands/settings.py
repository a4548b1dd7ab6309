"""`ft settings`: every setting, its value here and in the running manager, and who says so."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.config import config_file, settings_of
from ftman.errors import NetworkError

HEADER = ("SETTING", "VALUE", "FROM")
# The command line's own business: a manager has no use for them.
_HERE_ONLY = ("api_key", "nohistory", "host")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the table; a manager that runs with other settings is told of below it."""
    del args
    here = settings_of(session.config)
    there = manager_settings(session)
    if session.out.as_json:
        told = {key: {"value": value, "from": origin} for key, (value, origin) in here.items()}
        session.out.json_line({"file": str(config_file()), "here": told, "manager": there})
        return 0
    rows = [(key, setting_text(value), origin) for key, (value, origin) in here.items()]
    session.out.data(table(HEADER, rows))
    session.out.note(f"file: {config_file()}")
    for line in differences(here, there):
        session.out.warn(line)
    return 0


def manager_settings(session: Session) -> Mapping[str, Any]:
    """What the running manager says of its settings; {} when none runs."""
    try:
        manager = session.running_manager()
    except NetworkError as error:  # the settings of this shell are to be seen all the same
        session.out.note(error.message)
        return {}
    if manager is None:
        return {}
    with manager:
        found = manager.get("/api/ft/status").get("effective")
    return found if isinstance(found, dict) else {}


def differences(
    here: Mapping[str, tuple[Any, str]], there: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """One line for each setting that this shell and the manager do not agree on."""
    lines = []
    for key, (value, origin) in here.items():
        if key in _HERE_ONLY or key not in there or there[key].get("value") == value:
            continue
        other = there[key]
        lines.append(
            f"{key} is {setting_text(value)} here ({origin}), but the running manager has "
            f"{setting_text(other.get('value'))} ({other.get('from')}); "
            "ft shutdown, then any command starts it with the settings of this shell"
        )
    return lines


def setting_text(value: Any) -> str:
    """A value for a table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "-"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value not in ("", None) else "-"

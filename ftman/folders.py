"""Whether the folders that settings name can be used, told before anything is done in them."""

from __future__ import annotations

import os
from pathlib import Path

from ftman import files
from ftman.config import Config
from ftman.errors import FtmanError


def require_folders(config: Config) -> None:
    """Make the folders of this manager.   Raises: FtmanError naming folder, cause and next step."""
    for name, folder in named_folders(config).items():
        reason = trouble_with(folder)
        if reason:
            raise FtmanError(
                f"the folder {folder} cannot be used: {reason}",
                hint=another_instead(name),
                code="bad_folder",
            )


def named_folders(config: Config) -> dict[str, Path]:
    """The setting that names it -> a folder that must be there and be written."""
    found = {"FT_HOME": config.paths.home, "FT_MODELS": config.paths.models}
    if config.paths.parked is not None:
        found["FT_PARK_DISK"] = config.paths.parked
    return found


def another_instead(name: str) -> str:
    """What to do where a folder cannot be used. name: the setting's."""
    return f"Name one that can be written: {name}=FOLDER"


def trouble_with(folder: Path, *, leave_it: bool = True) -> str:
    """Why nothing can be written there, "" if it can. A missing folder is made, to see.

    leave_it: that stays.
    """
    before = folder
    try:
        while not before.exists():
            before = before.parent
        if not before.is_dir():
            return f"{before} is a file"
        files.make_dir(folder)
    except OSError as error:
        where = f" ({error.filename})" if str(error.filename) != str(folder) else ""
        return f"it cannot be made: {error.strerror or error}{where}"
    allowed = os.access(folder, os.W_OK | os.X_OK)
    if not leave_it:
        files.remove_empty_parents(folder, before)
    return "" if allowed else "it cannot be written"

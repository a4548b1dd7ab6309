"""Where the packaged registry and modelfiles lie: beside the package, or at the checkout's top."""

from __future__ import annotations

from pathlib import Path

import ftman
from ftman.errors import FtmanError

PACKAGE = Path(ftman.__file__).parent


def data_folder(name: str) -> Path:
    """Folder `name` ("registry" or "modelfiles").   Raises: FtmanError if the install lacks it."""
    for folder in (PACKAGE / "_data" / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FtmanError(
        f"this installation lacks its {name} folder ({PACKAGE / '_data' / name})",
        hint="Install ft again.",
    )

"""Writing a long message in an editor of the user's own (Ctrl-G, or /edit)."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ftman import files
from ftman.errors import FtmanError, UsageError

VARIABLES = ("FT_EDITOR", "OLLAMA_EDITOR", "VISUAL", "EDITOR")
FALL_BACK = "vi" if os.name == "posix" else "notepad"
TEXT_LIMIT_BYTES = 4 << 20


def edit(text: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Let the user change `text` in an editor; returns what was saved.

    Raises: UsageError when there is no such editor, FtmanError when it ended with an error.
    """
    words = shlex.split(next((environ[name] for name in VARIABLES if environ.get(name)), FALL_BACK))
    path = folder / f"message-{os.getpid()}.txt"
    files.write_atomic(path, text.encode())
    try:
        status = subprocess.call([*words, str(path)])
        if status != 0:
            raise FtmanError(f"the editor {words[0]} ended with status {status}; nothing is sent")
        return files.read_bytes(path, limit=TEXT_LIMIT_BYTES).decode("utf-8", "replace").rstrip()
    except FileNotFoundError:
        raise UsageError(
            f"there is no editor {words[0]}", hint="Choose one: export EDITOR=nano"
        ) from None
    finally:
        files.unlink(path)

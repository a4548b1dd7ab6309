"""Times a model's operators on this machine, in a child process: `python -m ftengine.profile`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftman.child_answer import answer_of
from ftman.config import EngineSettings
from ftman.errors import FtmanError

COMMAND = (sys.executable, "-m", "ftengine.profile")
TIMEOUT_S = 900.0


async def profile(
    ftw: Path, engine: EngineSettings, command: Sequence[str] = COMMAND
) -> Mapping[str, Any]:
    """{"profile": numbers, "text": a table}. The model is loaded once more, on the CPU.

    Raises: FtmanError with the engine's words.
    """
    arguments = [*command, "--ftw", str(ftw), "--threads", str(engine.threads), "--json"]
    by_hand = f"python -m ftengine.profile --ftw {ftw}"
    value = await answer_of(arguments, "measurement", TIMEOUT_S, by_hand)
    if "error" in value:
        raise FtmanError(str(value["error"]["message"]))
    return {"profile": value["profile"], "text": str(value["text"])}

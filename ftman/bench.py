"""Times a model's operators on this machine, in a child process: `python -m ftengine.profile`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftman.config import EngineSettings, engine_environment
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
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=engine_environment(),
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        value = json.loads(output)
    except asyncio.TimeoutError:
        raise FtmanError(f"the measurement gave no answer in {TIMEOUT_S:.0f} s") from None
    except ValueError:
        raise FtmanError(
            f"the measurement ended with status {process.returncode} before its answer",
            hint=f"Run it by hand to see why: python -m ftengine.profile --ftw {ftw}",
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if "error" in value:
        raise FtmanError(str(value["error"]["message"]))
    return {"profile": value["profile"], "text": str(value["text"])}

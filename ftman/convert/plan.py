"""What can be converted at all, asked before the first weight byte."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from ftman.convert.job import COMMAND, child_environment
from ftman.errors import UnsupportedError
from ftman.waits import end_child, result_within

log = logging.getLogger(__name__)

ASK_S = 30.0


async def built_families(command: Sequence[str] = COMMAND) -> tuple[str, ...]:
    """Families the engine can run, as its converter lists them; empty if it does not say."""
    process = await asyncio.create_subprocess_exec(
        *command,
        "families",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment(),
    )
    try:
        output, _ = await result_within(process.communicate(), ASK_S)
        value = json.loads(output)
    except (asyncio.TimeoutError, ValueError):
        value = None
    finally:
        await end_child(process)
    names = value.get("families") if isinstance(value, dict) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        log.info("the converter does not list its families; its plan decides")
        return ()
    return tuple(names)


def require_family(family: str, built: Sequence[str], model: str) -> None:
    """Refuse a family that is not built.   Raises: UnsupportedError naming what is built."""
    if not built or family in built:
        return
    raise UnsupportedError(
        f"{model} needs the model family {family}, which is not built yet; "
        f"built: {', '.join(built)}",
        hint="Nothing was fetched. `ft search` shows models; smollm2 runs everywhere.",
        code="unsupported_family",
    )

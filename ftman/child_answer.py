"""Runs a child process of the engine's that answers with one JSON object, and waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ftman.config import engine_environment
from ftman.errors import FtmanError
from ftman.waits import end_child, result_within


async def answer_of(
    arguments: Sequence[str],
    what: str,
    timeout_s: float,
    by_hand: str,
    given: bytes | None = None,
) -> Mapping[str, Any]:
    """The object that the child prints; {"error": ...} is the caller's to read.

    what: its name in messages. by_hand: the command that shows why it failed. given: its input.
    Raises: FtmanError where no object comes in time. The child has ended whatever happens.
    """
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=engine_environment(),
        start_new_session=True,
    )
    try:
        output, _ = await result_within(process.communicate(given), timeout_s)
        value = json.loads(output)
    except asyncio.TimeoutError:
        raise FtmanError(
            f"the {what} gave no answer in {timeout_s:.0f} s", hint=f"Run it by hand: {by_hand}"
        ) from None
    except ValueError:
        value = None
    finally:
        await end_child(process)
    if not isinstance(value, dict):
        raise FtmanError(
            f"the {what} ended with status {process.returncode} before its answer",
            hint=f"Run it by hand to see why: {by_hand}",
        )
    return value

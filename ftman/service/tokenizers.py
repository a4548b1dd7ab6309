"""Tokenizers live as long as their model is loaded or in use, and not longer."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from ftman.chat.tokenizer import Tokenizer
from ftman.clock import Clock

log = logging.getLogger(__name__)

SWEEP_S = 1.0


@dataclass
class _Shelved:
    loading: asyncio.Future[Tokenizer]
    users: int = 0


class TokenizerShelf:
    """Loads each tokenizer once, in a thread, and drops it when its engine is gone.

    A tokenizer of 250,000 tokens weighs 200 MB, so the shelf looks every second whether an engine
    still needs what it holds; an empty shelf does not look.
    """

    def __init__(self, is_needed: Callable[[str], bool], clock: Clock):
        self._is_needed = is_needed
        self._clock = clock
        self._shelved: dict[str, _Shelved] = {}
        self._sweeper: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def use(self, ftw_id: str, folder: Path) -> AsyncIterator[Tokenizer]:
        """The tokenizer of a model, held until the block ends.   Raises: FtmanError."""
        shelved = self._shelved.get(ftw_id)
        if shelved is None or (shelved.loading.done() and shelved.loading.exception()):
            loading = asyncio.ensure_future(asyncio.to_thread(Tokenizer.load, folder))
            shelved = self._shelved[ftw_id] = _Shelved(loading)
        shelved.users += 1
        try:
            # Shielded: the next request waits for the same load.
            yield await asyncio.shield(shelved.loading)
        finally:
            shelved.users -= 1
            if self._sweeper is None or self._sweeper.done():
                self._sweeper = asyncio.ensure_future(self._sweep())

    def held(self) -> list[str]:
        """FTW ids whose tokenizers are in memory."""
        return list(self._shelved)

    async def close(self) -> None:
        """Drop everything."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self._shelved.clear()

    async def _sweep(self) -> None:
        while self._shelved:
            await self._clock.sleep(SWEEP_S)
            idle = [
                key
                for key, shelved in self._shelved.items()
                if not shelved.users and not self._is_needed(key)
            ]
            for key in idle:
                del self._shelved[key]
            if idle:
                log.debug("dropped %d tokenizers", len(idle))
                give_memory_back()


def give_memory_back() -> None:
    """Ask the C library to return freed memory to the system, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

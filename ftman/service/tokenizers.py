"""Tokenizers live as long as their model is loaded or in use, and not longer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ftman.chat.tokenizer import Tokenizer
from ftman.clock import Clock
from ftman.memory import give_back, keep_little_free

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
        keep_little_free()
        # Always the same thread: the C library keeps some memory for every thread that had much.
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="ft-work-tokenizer")

    @contextlib.asynccontextmanager
    async def use(self, ftw_id: str, folder: Path) -> AsyncIterator[Tokenizer]:
        """The tokenizer of a model, held until the block ends.   Raises: FtmanError."""
        shelved = self._shelved.get(ftw_id)
        if shelved is None or (shelved.loading.done() and shelved.loading.exception()):
            loop = asyncio.get_running_loop()
            loading = loop.run_in_executor(self._loader, Tokenizer.load, folder)
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
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _sweep(self) -> None:
        while True:
            empty = not self._shelved
            await self._clock.sleep(SWEEP_S)
            dropped = self._drop_idle()
            if empty or dropped:
                # Also once after the shelf was empty: what the last answer held is free only then.
                give_back()
            if empty and not self._shelved:  # nobody came meanwhile, who would rely on us
                return

    def _drop_idle(self) -> int:
        idle = [
            key
            for key, shelved in self._shelved.items()
            if not shelved.users and not self._is_needed(key)
        ]
        for key in idle:
            del self._shelved[key]
        if idle:
            log.debug("dropped %d tokenizers", len(idle))
        return len(idle)

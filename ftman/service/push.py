"""Pushing models to a registry. Only what was fetched and kept can be sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from ftman.catalog.catalog import Catalog
from ftman.clock import Clock
from ftman.config import Paths
from ftman.names import parse_name
from ftman.pull.ollama_registry_push import Push, pushable
from ftman.pull.progress import Progress


class Pusher:
    """Sends installed models away; holds nothing of them."""

    def __init__(self, catalog: Catalog, paths: Paths, clock: Clock):
        self._catalog = catalog
        self._paths = paths
        self._clock = clock

    async def push(self, name: str, insecure: bool) -> AsyncGenerator[Progress, None]:
        """Send a model; ends with "success".   Raises: FtmanError."""
        target = parse_name(name)
        yield Progress("retrieving manifest")
        model = self._catalog.find(name)
        content = await asyncio.to_thread(pushable, model, self._catalog, self._paths)
        sending = Push(target, content, self._paths.home, insecure, self._clock)
        async for step in sending.run():
            yield step

"""A manager's pull side on a store of its own, with a fake converter and a bad registry."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from ftman.catalog.catalog import Catalog
from ftman.config import Config, Paths
from ftman.pull.index import Index
from ftman.pull.jobs import JobManager, PullOptions
from ftman.pull.progress import Progress
from ftman.pull.span import DownloadSettings
from ftman.pull.supply import SupplySettings
from ftman.pull.transport import Timeouts
from tests.fakes.hub import BadHub

CONVERTER = Path(__file__).parents[2] / "fakes" / "converter.py"
SETTINGS = DownloadSettings(
    parts=4,
    segment_bytes=64 << 10,
    sync_bytes=16 << 10,
    write_bytes=8 << 10,
    slow_bytes_per_s=200e3,
    slow_after_s=0.2,
    tries=4,
    backoff_s=0.005,
    max_backoff_s=0.02,
    reserve_bytes=0,
)


def converter(**knobs: Any) -> tuple[str, ...]:
    """The fake converter's command."""
    return (sys.executable, str(CONVERTER), json.dumps(knobs))


def options(**knobs: Any) -> PullOptions:
    """Small sizes and short waits."""
    return PullOptions(
        download=SETTINGS,
        supply=SupplySettings(window_over_bytes=1 << 30),
        timeouts=Timeouts(connect_s=2, read_s=0.3),
        converter=converter(**knobs),
        leave_s=0.02,
    )


def gguf_bytes(size: int, seed: int = 0) -> bytes:
    """Random bytes that begin like a GGUF file."""
    return b"GGUF" + random.Random(seed).randbytes(size - 4)


class Station:
    """One manager's pull side."""

    def __init__(self, home: Path):
        self.config = Config(Paths(home, home / "models"), reserve_bytes=0)
        self.index = Index.load((), home / "cache")
        self.catalog = Catalog(self.config.paths, self.index.default_tag)

    def manager(self, given: PullOptions | None = None, **config: Any) -> JobManager:
        """A job manager; call inside a running loop or not, it does not matter."""
        return JobManager(
            replace(self.config, **config), self.catalog, self.index, options=given or options()
        )

    def pull(self, name: str, given: PullOptions | None = None, **how: Any) -> list[Progress]:
        """Pull to the end in a loop of its own."""
        return asyncio.run(self._pull(name, given, how))

    async def _pull(
        self, name: str, given: PullOptions | None, how: dict[str, Any]
    ) -> list[Progress]:
        manager = self.manager(given)
        try:
            return [progress async for progress in manager.pull(name, **how)]
        finally:
            await manager.close()

    def leftovers(self) -> list[str]:
        """Names in the folder of partial downloads."""
        folder = self.config.paths.partial
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def weights(self, name: str) -> bytes:
        """The bytes of an installed model's shard."""
        return (self.catalog.find(name).ftw_path / "weights-00000.ftw").read_bytes()


@pytest.fixture
def station(tmp_path: Path) -> Station:
    return Station(tmp_path / "home")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[BadHub]:
    # The hub's library is told to be offline for all tests; this one hub is on this machine.
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with BadHub() as served:
        yield served

"""A manager's pull side as a program, to be killed: HOME NAME OPTIONS-JSON FAULTS.

options: converter (command), window_over, window_bytes, insecure, hub. Prints the installed FTW id.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftman import faults
from ftman.catalog.catalog import Catalog
from ftman.config import Config, Paths
from ftman.pull.index import Index
from ftman.pull.jobs import JobManager, PullOptions
from ftman.pull.span import DownloadSettings
from ftman.pull.supply import SupplySettings


async def main(home: Path, name: str, given: dict[str, Any]) -> None:
    """Pull once."""
    index = Index.load((), home / "cache")
    config = Config(Paths(home, home / "models"), reserve_bytes=0)
    catalog = Catalog(config.paths, index.default_tag)
    options = PullOptions(
        download=replace(
            DownloadSettings(),
            parts=4,
            segment_bytes=64 << 10,
            sync_bytes=16 << 10,
            write_bytes=8 << 10,
        ),
        supply=SupplySettings(
            given.get("window_over", 1 << 30), given.get("window_bytes", 1 << 20)
        ),
        converter=given["converter"],
        hub_endpoint=given.get("hub"),
    )
    manager = JobManager(config, catalog, index, options=options)
    async for _ in manager.pull(name, insecure=True):
        pass
    await manager.close()
    sys.stdout.write(catalog.find(given.get("installed", name)).ftw_id + "\n")


if __name__ == "__main__":
    faults.arm(sys.argv[4])
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))

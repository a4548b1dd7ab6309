"""`ft registry check [NAME]`: ask the sources of the index what they hold; a keeper's tool.

It needs no manager: nothing is fetched or installed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from ftman.cli.session import Session
from ftman.cli.units import human_bytes
from ftman.clock import SYSTEM
from ftman.pull.data import data_folder
from ftman.pull.download import Downloader
from ftman.pull.registry_check import EntryState, check_entry_sources, entries_of, write_checked
from ftman.pull.span import DownloadSettings, Health, Tools
from ftman.pull.transport import Timeouts, Transport


def run(args: argparse.Namespace, session: Session) -> int:
    """Print what differs; status 1 if anything does."""
    folder = Path(args.folder).expanduser() if args.folder else data_folder("registry")
    states = asyncio.run(_check(folder, args.name, session))
    if args.write:
        day = datetime.fromtimestamp(SYSTEM.wall(), tz=timezone.utc).strftime("%Y-%m-%d")
        for label in write_checked(folder, states, day):
            session.out.note(f"{label}: checked = {day}")
    differs = any(source.differences for state in states for source in state.sources)
    return 1 if differs else 0


async def _check(folder: Path, name: str, session: Session) -> Sequence[EntryState]:
    transport = Transport(Timeouts(), "ft")
    downloader = Downloader(Tools(transport, DownloadSettings(), SYSTEM, Health()))
    states = []
    try:
        for entry in entries_of(folder, name):
            state = await check_entry_sources(entry, downloader)
            states.append(state)
            _show(state, session)
    finally:
        await transport.close()
    return states


def _show(state: EntryState, session: Session) -> None:
    if session.out.as_json:
        sources = [asdict(source) for source in state.sources]
        session.out.json_line({"name": state.entry.label, "sources": sources})
        return
    for source in state.sources:
        verdict = "as the entry says"
        if not source.asked:
            verdict = "not asked: a wheel is checked when it is fetched"
        elif source.differences:
            verdict = "DIFFERS"
        size = f"   {human_bytes(source.bytes)} in {source.num_files} files" if source.bytes else ""
        session.out.data(f"{state.entry.label}   {source.source}   {verdict}{size}")
        for line in source.differences:
            session.out.data(f"  {line}")

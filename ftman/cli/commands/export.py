"""`ft export MODEL FOLDER`: an installed model as a folder for a machine without a network.

Reads the store only; needs no manager.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ftman.catalog.catalog import Catalog
from ftman.cli.progress import ProgressView
from ftman.cli.session import Session
from ftman.cli.units import human_bytes
from ftman.errors import FtmanError
from ftman.pull.disk import explain
from ftman.pull.index import Index
from ftman.pull.offline import export_model, require_new


def run(args: argparse.Namespace, session: Session) -> int:
    """Copy it, with progress, and say how to take it in."""
    config = session.config
    folder = Path(args.folder).expanduser().absolute()
    require_new(folder)
    index = Index.load(config.registry, config.paths.cache)
    catalog = Catalog(config.paths, index.default_tag)
    model = catalog.find(args.model)
    view, done = ProgressView(session.out), 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        told = {"status": f"exporting {model.name.short}", "total": model.size_bytes}
        view.feed({**told, "completed": done})

    try:
        export_model(catalog, model, folder, count)
    except OSError as error:
        raise explain(error, folder, f"exporting {model.name.short}") from error
    except FtmanError:
        raise
    finally:
        view.close()
    if session.out.as_json:
        session.out.json_line({"status": "success", "folder": str(folder)})
    else:
        session.out.data(f"exported {model.name.short} to {folder} ({human_bytes(done)})")
    session.out.note(f"on the other machine: ft import {folder.name}")
    return 0

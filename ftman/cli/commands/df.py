"""`ft df`: what takes disk space in the store. Reads only; needs no manager."""

from __future__ import annotations

import argparse

from ftman import files
from ftman.catalog.catalog import Catalog
from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes

HEADER = ("WHAT", "SIZE", "COUNT")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print sizes by kind and the free space."""
    del args
    paths = session.config.paths
    models = Catalog(paths, lambda _: None).models()
    used = {
        "weights": (files.tree_bytes(paths.ftw), len({model.ftw_id for model in models})),
        "blobs": (files.tree_bytes(paths.blobs), len(list(files.walk(paths.blobs)))),
        "partial": (files.tree_bytes(paths.partial), len(list(files.walk(paths.partial)))),
        "cache": (files.tree_bytes(paths.cache), len(list(files.walk(paths.cache)))),
    }
    needed = {layer.digest: layer.size for model in models for layer in model.layers}
    in_store = used["weights"][0] + used["blobs"][0]
    unneeded, free = max(0, in_store - sum(needed.values())), files.free_bytes(paths.models)
    if session.out.as_json:
        sizes = {name: size for name, (size, _) in used.items()}
        session.out.json_line({**sizes, "unneeded": unneeded, "free": free})
        return 0
    rows = [(name, human_bytes(size), str(count)) for name, (size, count) in used.items()]
    rows.append(("not needed", human_bytes(unneeded), "-"))
    rows.append(("free", human_bytes(free), "-"))
    session.out.data(table(HEADER, rows))
    session.out.note(f"store: {paths.models}")
    return 0

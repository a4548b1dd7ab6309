"""`ft df [-v]`: what takes disk space in the store. Reads only; needs no manager."""

from __future__ import annotations

import argparse
from collections import Counter

from ftman import files
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model
from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes

HEADER = ("WHAT", "SIZE", "COUNT")
MODEL_HEADER = ("MODEL", "ITS OWN", "SHARED")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print sizes by kind and the free space."""
    paths = session.config.paths
    models = Catalog(paths, lambda _: None).models()
    used = {
        "weights": (files.tree_bytes(paths.ftw), len({model.ftw_id for model in models})),
        "blobs": (files.tree_bytes(paths.blobs), len(list(files.walk(paths.blobs)))),
        "sources": (files.tree_bytes(paths.sources), len(list(files.walk(paths.sources)))),
        "partial": (files.tree_bytes(paths.partial), len(list(files.walk(paths.partial)))),
        "cache": (files.tree_bytes(paths.cache), len(list(files.walk(paths.cache)))),
    }
    needed = {layer.digest: layer.size for model in models for layer in model.layers}
    in_store = used["weights"][0] + used["blobs"][0]
    by_model = _by_model(models)
    unneeded, free = max(0, in_store - sum(needed.values())), files.free_bytes(paths.models)
    if session.out.as_json:
        sizes = {name: size for name, (size, _) in used.items()}
        told = [{"name": name, "own": own, "shared": shared} for name, own, shared in by_model]
        session.out.json_line({**sizes, "unneeded": unneeded, "free": free, "models": told})
        return 0
    if args.verbose:
        cells = [(name, human_bytes(own), human_bytes(shared)) for name, own, shared in by_model]
        session.out.data(table(MODEL_HEADER, cells) + "\n")
    rows = [(name, human_bytes(size), str(count)) for name, (size, count) in used.items()]
    rows.append(("not needed", human_bytes(unneeded), "-"))
    rows.append(("free", human_bytes(free), "-"))
    session.out.data(table(HEADER, rows))
    session.out.note(f"store: {paths.models}")
    return 0


def _by_model(models: list[Model]) -> list[tuple[str, int, int]]:
    """What removing each model alone would free, and what it shares with others. Units: bytes."""
    users = Counter(digest for model in models for digest in {item.digest for item in model.layers})
    found = []
    for model in models:
        sizes = {layer.digest: layer.size for layer in model.layers}
        own = sum(size for digest, size in sizes.items() if users[digest] == 1)
        found.append((model.name.short, own, sum(sizes.values()) - own))
    return sorted(found, key=lambda item: -item[1] - item[2])

"""A finished FTW folder: what is said of it, and whether it already answers a job."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from ftengine.convert.describe import Facts, describe
from ftengine.convert.journal import JOURNAL_NAME
from ftengine.convert.layout import Layout
from ftengine.convert.protocol import Job
from ftengine.convert.source import Checkpoint
from ftengine.errors import FormatError, RequestError
from ftengine.loader.ftw import INDEX_NAME, FtwModel, parse_index
from ftman import files

_log = logging.getLogger(__name__)


def facts_of_plan(source: Checkpoint, layout: Layout) -> Facts:
    """Facts before a byte is converted."""
    return Facts(
        source.kind,
        source.family.name,
        source.config,
        layout.tensors,
        layout.banks,
        source.settings,
        tuple((tensor.format, tensor.end - tensor.start) for tensor in source.tensors),
        source.small.get("chat_template.jinja", b"").decode("utf-8", "replace"),
        source.notes,
    )


def result_of(target: Path) -> dict[str, Any]:
    """Describe a finished folder. Raises: FormatError if it is damaged."""
    with FtwModel.open(target) as model:
        index = model.index
        source = json.loads(files.read_bytes(target / "source.json", limit=1 << 30))
        template = target / "chat_template.jinja"
        facts = Facts(
            source["kind"],
            index.family,
            model.config,
            index.tensors,
            index.banks,
            source["model_info"],
            tuple((item["type"], item["bytes"]) for item in source["tensors"]),
            template.read_text("utf-8", "replace") if template.is_file() else "",
            tuple(source["notes"]),
        )
    digest = hashlib.sha256(files.read_bytes(target / INDEX_NAME)).hexdigest()
    return {"ftw_id": digest, "bytes": files.tree_bytes(target), **describe(facts)}


def remove_strays(target: Path) -> None:
    """Remove what a finished folder does not list: the work folder, leftovers of a killed run."""
    where = target / INDEX_NAME
    index = parse_index(files.read_bytes(where), str(where))
    listed = {INDEX_NAME, *(item.file for item in index.shards), *(f.name for f in index.files)}
    for item in target.iterdir():
        if item.name not in listed:
            files.remove_tree(item)
    files.sync_dir(target)


def source_json(source: Checkpoint, job: Job) -> bytes:
    """source.json. Hashes of source files are not in it: the id depends on bytes alone."""
    value = {
        "kind": source.kind,
        "model_info": dict(source.settings),
        "tensors": [
            {
                "name": item.name,
                "type": item.format,
                "shape": list(item.shape),
                "bytes": item.end - item.start,
            }
            for item in source.tensors
        ],
        "sources": [{"name": i.name, "bytes": i.bytes, "sha256": None} for i in source.files],
        "derive": None if job.derive is None else job.derive.recipe(),
        "notes": list(source.notes),
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def finished_result(job: Job) -> dict[str, Any] | None:
    """The result of an earlier run that ended between its last write and its result line."""
    if (job.target / JOURNAL_NAME).exists() or not (job.target / INDEX_NAME).is_file():
        return None
    try:
        source = json.loads(files.read_bytes(job.target / "source.json", limit=1 << 30))
        expected = [{"name": i.name, "bytes": i.bytes, "sha256": None} for i in job.files]
        derive = None if job.derive is None else job.derive.recipe()
        if source["sources"] != expected or source["derive"] != derive:
            return None
        return result_of(job.target)
    except (OSError, ValueError, KeyError, TypeError, FormatError):
        _log.warning("the folder %s is not a finished conversion; starting again", job.target)
        return None


def check_target(target: Path) -> None:
    """Only an empty folder or an earlier conversion may be replaced."""
    if not target.is_dir() or (target / JOURNAL_NAME).exists():
        return
    if any(target.iterdir()) and not (target / INDEX_NAME).is_file():
        raise RequestError(
            f"{target} is neither empty nor a conversion; choose another folder",
            code="target_in_use",
        )

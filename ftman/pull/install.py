"""From a finished FTW folder to an installed model: its place, its texts, its manifest."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ftman import files
from ftman.catalog.model import ModelChanges, ModelDetails, NewModel
from ftman.catalog.modelfile import Modelfile, parse_modelfile
from ftman.catalog.verify import verify_folder
from ftman.config import Paths
from ftman.convert.messages import ConvertResult, parse_result
from ftman.errors import IntegrityError
from ftman.pull.data import data_folder
from ftman.pull.index import IndexEntry
from ftman.pull.source import ResolvedSource

log = logging.getLogger(__name__)

INDEX_LIMIT_BYTES = 64 << 20
JOURNAL_NAME = "journal.ndjson"
RECEIPT_NAME = "result.json"


def place_ftw(paths: Paths, built: Path, ftw_id: str) -> Path:
    """Move a converted folder to its place; one of the same id that is whole is reused.

    Raises: IntegrityError if the folder is not what its id says, OSError.
    """
    if not built.exists() and _is_whole(paths.ftw / ftw_id, ftw_id):
        return paths.ftw / ftw_id
    index = files.read_bytes(built / "index.json", limit=INDEX_LIMIT_BYTES)
    if hashlib.sha256(index).hexdigest() != ftw_id:
        raise IntegrityError(f"the converter's folder is not the FTW {ftw_id[:12]} that it names")
    problem = _size_problem(built, index)
    if problem:
        raise IntegrityError(f"the converter's folder is not complete: {problem}")
    files.unlink(built / JOURNAL_NAME)
    target = files.make_dir(paths.ftw) / ftw_id
    if target.exists():
        # All of it, not only the sizes: this may be the repair of bytes that changed at rest.
        damage = verify_folder(target, ftw_id)
        if not damage:
            files.remove_tree(built)
            return target
        problem = f"{damage[0].file} {damage[0].reason}"
        log.warning("the installed weights %s are damaged (%s): replaced", ftw_id[:12], problem)
        files.remove_tree(target)
    files.rename(built, target)
    return target


def write_receipt(folder: Path, result: ConvertResult, notes: list[str]) -> None:
    """Note in the job's folder that fetching and converting are over, and what came of it."""
    value = {"result": asdict(result), "notes": notes}
    files.write_atomic(folder / RECEIPT_NAME, json.dumps(value).encode())


def read_receipt(paths: Paths, folder: Path) -> tuple[ConvertResult, list[str]] | None:
    """What an earlier run finished, if its FTW is still whole in the job's folder or the store."""
    try:
        value = json.loads(files.read_bytes(folder / RECEIPT_NAME))
        result = parse_result(value["result"])
        notes = [str(note) for note in value["notes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    ftw_id = result.ftw_id
    if _is_whole(folder / "ftw", ftw_id) or _is_whole(paths.ftw / ftw_id, ftw_id):
        return result, notes
    return None


def _is_whole(folder: Path, ftw_id: str) -> bool:
    try:
        index = files.read_bytes(folder / "index.json", limit=INDEX_LIMIT_BYTES)
    except OSError:
        return False
    same = hashlib.sha256(index).hexdigest() == ftw_id
    return same and not _size_problem(folder, index)


def _size_problem(folder: Path, index: bytes) -> str:
    """ "" if every file of the index lies in `folder` with its size, and the index is the same."""
    try:
        if files.read_bytes(folder / "index.json", limit=INDEX_LIMIT_BYTES) != index:
            return "index.json differs"
        value = json.loads(index)
        sizes = {str(item["file"]): int(item["bytes"]) for item in value["shards"]}
        sizes |= {str(item["name"]): int(item["bytes"]) for item in value["files"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"index.json: {error}"
    for name, size in sizes.items():
        path = folder / Path(name).name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is missing or has another size"
    return ""


def new_model(
    result: ConvertResult,
    source: ResolvedSource,
    entry: IndexEntry | None,
    changes: ModelChanges | None,
    notes: list[str],
) -> NewModel:
    """Everything the catalog keeps of a model: facts of the conversion, texts of the Modelfile."""
    known = {field.name for field in fields(ModelDetails)}
    details: dict[str, Any] = {k: v for k, v in result.details.items() if k in known}
    details["families"] = tuple(details.get("families") or ())
    made = NewModel(
        ftw_id=result.ftw_id,
        details=ModelDetails(**details),
        model_info=result.model_info,
        capabilities=result.capabilities,
        eos_ids=result.eos_ids,
        load_bytes=result.load_bytes,
        kv_bytes_per_token=result.kv_bytes_per_token,
        kv_q8_0_bytes_per_token=result.kv_q8_0_bytes_per_token,
        licenses=(entry.license,) if entry is not None else (),
        source={**source.facts, "identity": source.identity},
        notes=(*result.notes, *notes),
    )
    defaults = default_modelfile(entry)
    if defaults is not None:
        made = _with_defaults(made, defaults)
    return made if changes is None else with_changes(made, changes)


def refreshed(installed: NewModel, entry: IndexEntry | None) -> NewModel | None:
    """An installed model under today's default Modelfile; None if nothing would change."""
    defaults = default_modelfile(entry)
    if entry is None or defaults is None:
        return None
    bare = replace(installed, licenses=(entry.license,), parent="")
    wanted = _with_defaults(bare, defaults)
    return None if wanted == installed else wanted


def default_modelfile(entry: IndexEntry | None) -> Modelfile | None:
    """The packaged Modelfile of an indexed model, if there is one."""
    path = data_folder("modelfiles") / f"{entry.name}.Modelfile" if entry else None
    if path is None or not path.is_file():
        return None
    return parse_modelfile(files.read_bytes(path, limit=1 << 20), path.name)


def _with_defaults(made: NewModel, modelfile: Modelfile) -> NewModel:
    return replace(
        made,
        template=modelfile.last("template") or "",
        system=modelfile.last("system") or "",
        parameters=modelfile.parameters,
        licenses=modelfile.licenses or made.licenses,
        messages=modelfile.messages,
        renderer=modelfile.last("renderer") or "",
        parser=modelfile.last("parser") or "",
        requires=modelfile.last("requires") or "",
    )


def with_changes(made: NewModel, changes: ModelChanges) -> NewModel:
    """`made` with the texts of a create request over its own."""
    given = {
        key: getattr(changes, key)
        for key in ("template", "system", "renderer", "parser", "requires")
        if getattr(changes, key) is not None
    }
    return replace(
        made,
        **given,
        parameters={**made.parameters, **(changes.parameters or {})},
        licenses=(*made.licenses, *changes.licenses_added),
        messages=changes.messages or made.messages,
    )

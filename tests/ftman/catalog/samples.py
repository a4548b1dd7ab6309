"""Small stores with real FTW folders (random bytes, true checksums) and an invariant checker."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import xxhash

from ftman.catalog.catalog import Catalog
from ftman.catalog.manifest import FTW_TYPE, Manifest
from ftman.catalog.model import ModelDetails, NewModel
from ftman.chat.types import Message
from ftman.config import Paths
from ftman.names import ModelName, is_valid_name

BLOCK_BYTES = 16 << 20


def paths_in(folder: Path) -> Paths:
    return Paths(folder, folder / "models")


def catalog_in(folder: Path, default_tag: str | None = None) -> Catalog:
    return Catalog(paths_in(folder), lambda name: default_tag)


def make_ftw(paths: Paths, seed: int = 0, shard_bytes: int = 8192) -> str:
    """Write an FTW folder of two shards and a tokenizer; returns its id."""
    data = random.Random(seed)
    shards = {f"weights-0000{i}.ftw": data.randbytes(shard_bytes) for i in range(2)}
    others = {
        "config.json": b'{"model_type":"llama"}',
        "tokenizer.json": data.randbytes(100),
        "chat_template.jinja": b"{{ messages }}",
        "source.json": json.dumps(
            {
                "kind": "gguf",
                "model_info": {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a"]},
                "tensors": [{"name": "t", "type": "F32", "shape": [2, 2]}],
            }
        ).encode(),
    }
    index = {
        "format": "ftw",
        "version": 1,
        "family": "llama",
        "shards": [
            {
                "file": name,
                "bytes": len(content),
                "blocks": [
                    xxhash.xxh3_128_hexdigest(content[start : start + BLOCK_BYTES])
                    for start in range(0, len(content), BLOCK_BYTES)
                ],
            }
            for name, content in shards.items()
        ],
        "files": [
            {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in others.items()
        ],
        "tensors": [],
        "banks": [],
    }
    encoded = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
    ftw_id = hashlib.sha256(encoded).hexdigest()
    folder = paths.ftw / ftw_id
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**shards, **others, "index.json": encoded}.items():
        (folder / name).write_bytes(content)
    return ftw_id


def new_model(ftw_id: str, **changes: object) -> NewModel:
    values: dict[str, object] = {
        "ftw_id": ftw_id,
        "details": ModelDetails("gguf", "llama", ("llama",), "135M", "Q4_1", 2048, 576),
        "model_info": {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]},
        "eos_ids": (2,),
        "load_bytes": 1000,
        "kv_bytes_per_token": 64,
        "template": "{{ .Prompt }}!",
        "system": "Be kind.",
        "parameters": {"temperature": 0.5, "stop": ["<end>"]},
        "licenses": ("MIT",),
        "messages": (Message("user", "hi"), Message("assistant", "hello")),
        "source": {"url": "file:///x.gguf"},
        "notes": ("a note",),
    }
    return NewModel(**{**values, **changes})  # type: ignore[arg-type]


def name_of(model: str, tag: str = "latest") -> ModelName:
    return ModelName(model, tag, tagged=True)


def broken_invariants(paths: Paths) -> list[str]:
    """I1 and I2 by a full rehash, written without the catalog's own reading code."""
    wrong, needed = [], set()
    for path in sorted(paths.manifests.rglob("*")) if paths.manifests.exists() else []:
        parts = path.relative_to(paths.manifests).parts
        if path.is_dir() or path.name.endswith(".tmp"):
            continue
        if len(parts) != 4 or not is_valid_name(f"{'/'.join(parts[:3])}:{parts[3]}"):
            wrong.append(f"{path} is no manifest path")
            continue
        manifest = Manifest.from_json(path.read_bytes())
        for layer in (*manifest.layers, manifest.config):
            needed.add(layer.hex)
            target = paths.blobs / f"sha256-{layer.hex}"
            if layer.media_type == FTW_TYPE:
                target = paths.ftw / layer.hex / "index.json"
            if not target.is_file():
                wrong.append(f"{parts}: {layer.media_type} is missing")
            elif hashlib.sha256(target.read_bytes()).hexdigest() != layer.hex:
                wrong.append(f"{parts}: {layer.media_type} does not match")
    return wrong


def orphans(paths: Paths) -> set[str]:
    """Blobs and FTW folders that no manifest needs."""
    needed = set()
    for path in paths.manifests.rglob("*"):
        if path.is_file() and not path.name.endswith(".tmp"):
            needed |= {d.partition(":")[2] for d in Manifest.from_json(path.read_bytes()).digests}
    blobs = {path.name.removeprefix("sha256-") for path in paths.blobs.iterdir()}
    return (blobs | {path.name for path in paths.ftw.iterdir()}) - needed

"""How a model's texts and numbers lie in blobs: NewModel -> layers, manifest -> Model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftman import files
from ftman.catalog.blobs import BlobStore
from ftman.catalog.manifest import (
    CONFIG_TYPE,
    FTW_TYPE,
    INFO_TYPE,
    LICENSE_TYPE,
    MESSAGES_TYPE,
    PARAMS_TYPE,
    SYSTEM_TYPE,
    TEMPLATE_TYPE,
    Layer,
    Manifest,
)
from ftman.catalog.model import Model, ModelDetails, ModelInfo, NewModel
from ftman.chat.types import Message
from ftman.errors import FtmanError, IntegrityError
from ftman.names import ModelName

JINJA_NAME = "chat_template.jinja"
SOURCE_NAME = "source.json"


def write_model(new: NewModel, blobs: BlobStore, ftw_bytes: int) -> Manifest:
    """Write every blob of a model; the manifest itself is the caller's to write, last."""
    layers = [Layer(FTW_TYPE, f"sha256:{new.ftw_id}", ftw_bytes, new.parent)]
    layers.append(_store(blobs, INFO_TYPE, _json(_without_arrays(new.model_info))))
    if new.template:
        layers.append(_store(blobs, TEMPLATE_TYPE, new.template.encode()))
    if new.system:
        layers.append(_store(blobs, SYSTEM_TYPE, new.system.encode()))
    if new.parameters:
        layers.append(_store(blobs, PARAMS_TYPE, _json(new.parameters)))
    if new.messages:
        turns = [{"role": turn.role, "content": turn.content} for turn in new.messages]
        layers.append(_store(blobs, MESSAGES_TYPE, _json(turns)))
    for text in dict.fromkeys(new.licenses):
        layers.append(_store(blobs, LICENSE_TYPE, text.encode()))
    config = _store(blobs, CONFIG_TYPE, _json(_config_value(new)))
    return Manifest(config, tuple(layers))


def read_model(
    name: ModelName, manifest: Manifest, digest: str, modified_wall_s: float, reader: Reader
) -> Model:
    """Resolve a manifest. A missing or damaged text blob is told in `damaged`, not raised."""
    config = reader.json(manifest.config)
    own = _mapping(config.get("ft"))
    ftw = manifest.first(FTW_TYPE)
    ftw_path = reader.ftw / (ftw.hex if ftw else "missing")
    jinja = ftw_path / JINJA_NAME
    capabilities = config.get("capabilities")
    return Model(
        name=name,
        digest=digest,
        modified_wall_s=modified_wall_s,
        size_bytes=manifest.size_bytes,
        details=_details(config, _text(own.get("parent"))),
        ftw_id=ftw.hex if ftw else "",
        ftw_path=ftw_path,
        template=reader.text(manifest.first(TEMPLATE_TYPE)),
        jinja_path=jinja if jinja.is_file() else None,
        system=reader.text(manifest.first(SYSTEM_TYPE)),
        parameters=reader.json(manifest.first(PARAMS_TYPE)),
        licenses=tuple(
            reader.text(item) for item in manifest.layers if item.media_type == LICENSE_TYPE
        ),
        messages=reader.messages(manifest.first(MESSAGES_TYPE)),
        capabilities=_texts(capabilities),
        parent=_text(own.get("parent")),
        load_bytes=_number(own.get("load_bytes")),
        kv_bytes_per_token=_number(own.get("kv_bytes_per_token")),
        kv_q8_0_bytes_per_token=_number(own.get("kv_q8_0_bytes_per_token")),
        eos_ids=tuple(_number(item) for item in _items(own.get("eos_ids"))),
        damaged=reader.problem or ("" if ftw else "the manifest names no weights"),
        notes=_texts(own.get("notes")),
        source=_mapping(own.get("source")),
        renderer=_text(config.get("renderer")),
        parser=_text(config.get("parser")),
        requires=_text(config.get("requires")),
        layers=(*manifest.layers, manifest.config),
    )


def read_info(model: Model, blobs: BlobStore, *, verbose: bool) -> ModelInfo:
    """Metadata of a model; `verbose` gives the arrays too, read from the FTW folder."""
    layer = next((item for item in model.layers if item.media_type == INFO_TYPE), None)
    info = _parsed(blobs.read(layer.digest)) if layer else {}
    source = _source_of(model.ftw_path)
    tensors = tuple(item for item in _items(source.get("tensors")) if isinstance(item, dict))
    if verbose and source.get("model_info"):
        info = {**info, **_mapping(source["model_info"])}
    return ModelInfo(info, tensors)


def as_new(model: Model, info: ModelInfo) -> NewModel:
    """What would install `model` again; the start of a derived model."""
    return NewModel(
        ftw_id=model.ftw_id,
        details=replace(model.details, parent_model=""),
        model_info=info.model_info,
        capabilities=model.capabilities,
        eos_ids=model.eos_ids,
        load_bytes=model.load_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_q8_0_bytes_per_token=model.kv_q8_0_bytes_per_token,
        template=model.template,
        system=model.system,
        parameters=model.parameters,
        licenses=model.licenses,
        messages=model.messages,
        source=model.source,
        notes=model.notes,
        parent=model.parent,
        renderer=model.renderer,
        parser=model.parser,
        requires=model.requires,
    )


class Reader:
    """Reads the blobs of one manifest and remembers the first problem instead of raising."""

    def __init__(self, blobs: BlobStore, ftw: Path):
        self._blobs = blobs
        self.ftw = ftw
        self.problem = ""

    def text(self, layer: Layer | None) -> str:
        """A text layer, "" when there is none or it is damaged."""
        return self._bytes(layer).decode("utf-8", "replace")

    def json(self, layer: Layer | None) -> dict[str, Any]:
        """A JSON object layer, {} when there is none or it is damaged."""
        value = self._json(layer)
        return value if isinstance(value, dict) else {}

    def messages(self, layer: Layer | None) -> tuple[Message, ...]:
        """The example turns."""
        turns = [item for item in _items(self._json(layer)) if isinstance(item, dict)]
        return tuple(Message(_text(t.get("role")), _text(t.get("content"))) for t in turns)

    def _json(self, layer: Layer | None) -> Any:
        data = self._bytes(layer)
        if not data or layer is None:
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            self.problem = self.problem or f"blob {layer.digest} is not JSON"
            return None

    def _bytes(self, layer: Layer | None) -> bytes:
        if layer is None:
            return b""
        try:
            return self._blobs.read(layer.digest)
        except FtmanError as error:
            self.problem = self.problem or error.message
        except OSError as error:
            self.problem = self.problem or f"blob {layer.digest}: {error.strerror}"
        return b""


def config_facts(model: NewModel | Model) -> dict[str, Any]:
    """A model's config in Ollama's words, for the catalog and for other registries."""
    details = model.details
    value: dict[str, Any] = {
        "model_format": details.format,
        "model_family": details.family,
        "model_families": list(details.families) or None,
        "model_type": details.parameter_size,
        "file_type": details.quantization_level,
        "architecture": "amd64",
        "os": "linux",
    }
    for key in ("renderer", "parser", "requires"):
        if getattr(model, key):
            value[key] = getattr(model, key)
    return value


def _config_value(new: NewModel) -> dict[str, Any]:
    details = new.details
    value = config_facts(new)
    value |= {
        "capabilities": list(new.capabilities),
        "context_length": details.context_length,
        "embedding_length": details.embedding_length,
    }
    value["ft"] = {
        "ftw_id": new.ftw_id,
        "eos_ids": list(new.eos_ids),
        "load_bytes": new.load_bytes,
        "kv_bytes_per_token": new.kv_bytes_per_token,
        "kv_q8_0_bytes_per_token": new.kv_q8_0_bytes_per_token,
        "source": dict(new.source),
        "notes": list(new.notes),
        "parent": new.parent,
    }
    return value


def _details(config: Mapping[str, Any], parent: str) -> ModelDetails:
    return ModelDetails(
        format=_text(config.get("model_format")),
        family=_text(config.get("model_family")),
        families=_texts(config.get("model_families")),
        parameter_size=_text(config.get("model_type")),
        quantization_level=_text(config.get("file_type")),
        context_length=_number(config.get("context_length")),
        embedding_length=_number(config.get("embedding_length")),
        parent_model=parent,
    )


def _source_of(ftw_path: Path) -> Mapping[str, Any]:
    try:
        data = files.read_bytes(ftw_path / SOURCE_NAME, limit=256 << 20)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise IntegrityError(f"{SOURCE_NAME} cannot be read: {error.strerror}") from None
    return _parsed(data)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise IntegrityError("the model's metadata is not JSON") from None
    return value if isinstance(value, dict) else {}


def _without_arrays(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(v, list | tuple) and v else v for key, v in info.items()}


def _store(blobs: BlobStore, media_type: str, data: bytes) -> Layer:
    return Layer(media_type, blobs.write(data), len(data))


def _json(value: Any) -> bytes:
    plain = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in _items(value) if isinstance(item, str))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

"""The dataclasses the catalog speaks in. What they mean on disk is in content.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftman.catalog.manifest import Layer
from ftman.chat.types import Message
from ftman.names import ModelName


@dataclass(frozen=True)
class ModelDetails:
    """What listings show of a model. Units: context and embedding lengths in tokens, numbers."""

    format: str = ""
    family: str = ""
    families: tuple[str, ...] = ()
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: int = 0
    embedding_length: int = 0
    parent_model: str = ""


@dataclass(frozen=True)
class Model:
    """An installed model, resolved. Texts are read; weights are only named.

    digest: hex SHA-256 of the manifest. size_bytes: all layers. load_bytes: memory for the
    weights. kv_bytes_per_token: in bf16; kv_q8_0_bytes_per_token: in q8_0, 0 = not said. damaged:
    "" or what is wrong, with the file's name.
    """

    name: ModelName
    digest: str
    modified_wall_s: float
    size_bytes: int
    details: ModelDetails
    ftw_id: str
    ftw_path: Path
    template: str
    jinja_path: Path | None
    system: str
    parameters: Mapping[str, Any]
    licenses: tuple[str, ...]
    messages: tuple[Message, ...]
    capabilities: tuple[str, ...]
    parent: str
    load_bytes: int
    kv_bytes_per_token: int
    eos_ids: tuple[int, ...]
    damaged: str = ""
    notes: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    layers: tuple[Layer, ...] = ()
    kv_q8_0_bytes_per_token: int = 0


@dataclass(frozen=True)
class NewModel:
    """A model about to be installed; its FTW folder is already in place."""

    ftw_id: str
    details: ModelDetails
    model_info: Mapping[str, Any]
    capabilities: tuple[str, ...] = ("completion",)
    eos_ids: tuple[int, ...] = ()
    load_bytes: int = 0
    kv_bytes_per_token: int = 0
    kv_q8_0_bytes_per_token: int = 0
    template: str = ""
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    licenses: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parent: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""


@dataclass(frozen=True)
class ModelChanges:
    """What a derived model changes; None keeps the base's value, parameters merge key by key."""

    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Any] | None = None
    licenses_added: tuple[str, ...] = ()
    messages: tuple[Message, ...] | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None


@dataclass(frozen=True)
class ModelInfo:
    """Metadata under GGUF key names, and the tensor table where the source had one."""

    model_info: Mapping[str, Any]
    tensors: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Orphan:
    """Something in the store that no installed model names. due: a clean-up removes it now.

    kind: "weights", "blob" or "source" (files as they came, kept for a push). Units: bytes; age in
    seconds since it was last written.
    """

    kind: str
    path: Path
    bytes: int
    age_s: float
    due: bool
    reason: str


@dataclass(frozen=True)
class Damage:
    """A damaged stretch of an installed file. Units: bytes, [start, end) of `file`.

    file: a name inside the FTW folder, or a digest for a blob.
    """

    file: str
    reason: str
    start: int = 0
    end: int = 0

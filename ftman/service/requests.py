"""What use cases are asked for and answer with, beside the chat types; free of any wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftman.catalog.model import Model, ModelChanges
from ftman.chat.types import Options


@dataclass(frozen=True)
class CreateRequest:
    """A model to build: from an installed (or pullable) model, or from uploaded files.

    files: path inside the model -> digest of an uploaded blob.
    """

    name: str
    from_: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    changes: ModelChanges = field(default_factory=ModelChanges)
    quantize: str = ""
    adapters: Mapping[str, str] = field(default_factory=dict)
    draft_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """Everything `show` tells of a model. model_info: GGUF keys; arrays null unless verbose."""

    model: Model
    modelfile: str
    parameters: str
    template: str
    model_info: Mapping[str, Any]
    tensors: tuple[Mapping[str, Any], ...]
    capabilities: tuple[str, ...]
    reference_path: tuple[str, ...]


@dataclass(frozen=True)
class RunningModel:
    """One engine as listings show it. expires_wall_s None = never. Bytes, seconds, tokens."""

    name: str
    model: Model | None
    state: str
    size_bytes: int
    size_vram_bytes: int
    context_tokens: int
    expires_wall_s: float | None
    in_use: int
    loaded_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Settings:
    """Effective generation settings of one request: every value decided."""

    options: Options
    context_tokens: int
    notes: tuple[str, ...] = ()

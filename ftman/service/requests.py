"""What use cases are asked for and answer with, beside the chat types; free of any wire format."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftman.catalog.model import Model, ModelChanges
from ftman.chat.types import Options, Usage
from ftman.service.effective import Effective


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
    chat_format: str = ""
    effective: tuple[Effective, ...] = ()


@dataclass(frozen=True)
class RunningModel:
    """One engine as listings show it. expires_wall_s None = never. Bytes, seconds, tokens.

    kv_format: of its keys and values, "" while it loads.
    """

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
    kv_format: str = ""


@dataclass(frozen=True)
class Settings:
    """Effective generation settings of one request: every value decided."""

    options: Options
    context_tokens: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmbedInput:
    """Inputs to turn into vectors, each a text or token ids; none at all: the model is only loaded.

    An empty text is one input too. truncate: an input longer than the context is cut at its end,
    and that is said in the notes; else it is a ContextLengthError. dimensions: numbers per vector,
    0 = all; more than the model has is said in the notes, or with strict_dimensions an error.
    pooling "" = the model's own. keep_alive_s as in ChatRequest.
    """

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    truncate: bool = True
    dimensions: int = 0
    strict_dimensions: bool = False
    normalize: bool = True
    pooling: str = ""
    options: Options = field(default_factory=Options)
    keep_alive_s: float | None = None
    request_id: str = ""


@dataclass(frozen=True)
class Vector:
    """One embedding. data: little-endian float32, as OpenAI's base64 form wants it."""

    data: bytes

    def floats(self) -> list[float]:
        """The numbers, exactly."""
        numbers = array("f", self.data)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()

    def short_floats(self) -> list[float]:
        """The numbers in 9 digits, which read back as the same float32: half the JSON."""
        return [float(f"{number:.9g}") for number in self.floats()]


@dataclass(frozen=True)
class EmbedResult:
    """Vectors in the order of the inputs. prompt_tokens: of all inputs, as computed.

    notes are things the user must be told (an input that was cut, dimensions not to be had).
    """

    vectors: tuple[Vector, ...]
    prompt_tokens: int
    pooling: str
    usage: Usage = field(default_factory=Usage)
    notes: tuple[str, ...] = ()

"""What a checkpoint is, read from headers and small files only: the same record for every kind.

safetensors_source.py and gguf_source.py build it; layout.py turns it into regions and pieces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftengine.convert.protocol import SourceFile
from ftengine.errors import FormatError, LoadError
from ftengine.models.families.base import Family

SMALL_LIMIT_BYTES = 64 << 20
SCALES, FACTOR = "scales", "factor"
"""Roles of the tensors that belong to a quantised weight; its codes have none."""


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of the checkpoint. Units: start and end are byte offsets in file number `file`.

    weight is the name that family rules know where it is not the tensor's own: that of the weight
    that these are the codes of, or the scales (role). shape is that of the values. blocks: scales
    stand between the codes, in GGML's blocks of nvfp4.
    """

    name: str
    file: int
    start: int
    end: int
    shape: tuple[int, ...]
    format: str
    weight: str = ""
    role: str = ""
    blocks: bool = False

    @property
    def rule_name(self) -> str:
        """The name that family rules know."""
        return self.weight or self.name


@dataclass(frozen=True)
class Checkpoint:
    """Everything known before the first weight byte.

    config is HF-style; small holds the tokenizer and template files by FTW name; settings are the
    GGUF-style key-values (arrays included).
    """

    kind: str
    family: Family
    config: dict[str, Any]
    tensors: tuple[SourceTensor, ...]
    small: Mapping[str, bytes]
    settings: Mapping[str, Any]
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...] = field(default=())


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object of a foreign file. Raises: FormatError naming the file."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where} must hold a JSON object")
    return value


def check_small(item: SourceFile) -> None:
    """Refuse a 'small' file that is not. Raises: LoadError."""
    if item.bytes > SMALL_LIMIT_BYTES:
        raise LoadError(f"{item.name} has {item.bytes} bytes; the limit is {SMALL_LIMIT_BYTES}")


def dump_json(value: Any) -> bytes:
    """Deterministic JSON for files people may look at."""
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"

"""A model's vocabulary as llguidance wants it, out of the FTW folder's tokenizer.json.

Loaded when the first constraint comes: most engines never see one, and it weighs up to 1 kB a
token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from ftengine.errors import RequestError
from ftengine.protocol import CONTROL_TOKEN
from ftman import files

_FILE_LIMIT_BYTES = 256 << 20
CODE = "constraint_unsupported"


@dataclass(frozen=True)
class Vocabulary:
    """specials: id -> text; size covers the model's ids and the tokenizer's."""

    inner: LLTokenizer
    size: int
    eos_ids: tuple[int, ...]
    specials: dict[int, str]


def load_vocabulary(folder: Path, model_size: int, eos_ids: Sequence[int]) -> Vocabulary:
    """Read tokenizer.json. Raises: RequestError "constraint_unsupported" naming file and reason."""
    path = folder / "tokenizer.json"
    try:
        value = json.loads(files.read_bytes(path, limit=_FILE_LIMIT_BYTES))
        added = [item for item in value.get("added_tokens") or () if isinstance(item, dict)]
        specials = _make_special(added)
        ids = [item["id"] for item in added]
        vocab = value["model"]["vocab"]
        ids += vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1]
        size = max(model_size, max(ids) + 1)
        value["truncation"] = value["padding"] = None
        stops = [number for number in eos_ids if 0 <= number < size]
        stops = stops or [number for number in specials if number < size][:1] or [size - 1]
        inner = LLTokenizer(json.dumps(value), n_vocab=size, eos_token=stops)
    except OSError as error:
        raise _unsupported(path, error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unsupported(path, str(error) or type(error).__name__) from None
    return Vocabulary(inner, size, tuple(stops), specials)


def _make_special(added: list[dict[str, Any]]) -> dict[int, str]:
    """Markers become special, as the manager's tokenizer has them; returns all special tokens."""
    for item in added:
        if CONTROL_TOKEN.fullmatch(item["content"]):
            item["special"] = True
    return {item["id"]: item["content"] for item in added if item.get("special")}


def _unsupported(path: Path, reason: str) -> RequestError:
    return RequestError(
        f"this model cannot be held to a constraint: {path.name} is of no use for it "
        f"({reason[:200]}); ask without one, or check the reply yourself",
        code=CODE,
    )

"""How an embedding model's authors pool, out of sentence-transformers' 1_Pooling/config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

POOLING_FILE = "1_Pooling.config.json"
"""1_Pooling/config.json by the name it has in a job, where folders are gone."""

_GGUF_TYPES = {"mean": 1, "cls": 2, "last": 3}
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


def pooling_settings(
    config: Mapping[str, Any] | None, arch: str
) -> tuple[dict[str, int], tuple[str, ...]]:
    """The key-value a GGUF file of this model would have, and what to tell the user."""
    if config is None:
        return {}, ()
    named = config.get("pooling_mode")
    chosen = {_NAMES.get(str(named), str(named))} if named else set()
    for flag, value in config.items():
        if flag.startswith("pooling_mode_") and value is True:
            chosen.add(_FLAGS.get(flag, flag.removeprefix("pooling_mode_")))
    known = [_GGUF_TYPES[item] for item in chosen if item in _GGUF_TYPES]
    if len(chosen) == len(known) == 1:
        return {f"{arch}.pooling_type": known[0]}, ()
    said = " and ".join(sorted(chosen)) or "none"
    return {}, (f"its own pooling ({said}) is not built; mean, last or cls may be asked for",)

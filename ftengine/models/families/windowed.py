"""What families share whose full layers stand among windowed ones, and counts of experts."""

from __future__ import annotations

from dataclasses import replace

from ftengine.models.families.base import Config, GgufKey
from ftengine.models.spec import AttentionSpec, MlpSpec

WINDOWED, FULL = "sliding_attention", "full_attention"
PATTERN = "attention.sliding_window_pattern"

KINDS_KEY = GgufKey("layer_types", PATTERN, "kinds", kinds=((WINDOWED, PATTERN), (FULL, "")))
WINDOW_KEYS = (GgufKey("sliding_window", "attention.sliding_window"), KINDS_KEY)
"""Where GGUF files say which layers have windows."""


def nope_on_full(
    config: Config, full: AttentionSpec, every: int, default_window: int
) -> tuple[AttentionSpec, ...]:
    """Windowed layers with positions, every `every`-th a full one without."""
    windowed = replace(full, window=config.size("sliding_window", default=default_window))
    full = replace(full, rope=None)
    kinds = config.layer_types(
        lambda layer: WINDOWED if (layer + 1) % every else FULL, WINDOWED, FULL
    )
    return tuple(windowed if kind == WINDOWED else full for kind in kinds)


def shared_experts(config: Config, key: str, width: int, default: int) -> MlpSpec | None:
    """All shared experts as one MLP; none where `key` says 0."""
    count = config.values.get(key, default)
    if not count:
        return None
    return MlpSpec(config.size(key, default=default) * width, config.activation(), stem="shared")

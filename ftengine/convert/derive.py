"""Upcycling: a dense Llama as a Mixtral whose experts are copies of its MLP.

Mixtral's chosen weights sum to 1 and all experts compute the same, so the result equals the dense
model for any router. The router is made from integers alone (derived_router), so that it is the
same bytes on every machine for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ftengine.convert.protocol import Derive
from ftengine.convert.source import Checkpoint
from ftengine.errors import LoadError
from ftengine.models.families import family_named
from ftengine.quant.base import Bytes

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UINT64 = (1 << 64) - 1


def derive_checkpoint(source: Checkpoint, derive: Derive) -> Checkpoint:
    """The checkpoint as if it were the derived model; tensors stay those of the source.

    Raises: LoadError if the source cannot be upcycled exactly.
    """
    config = source.config
    window = config.get("sliding_window") if config.get("model_type") == "mistral" else None
    model = source.family.read_config(config)
    first = model.attention_specs[0] if model.attention_specs else None
    has_bias = first is not None and (first.qkv_bias or first.out_bias or config.get("mlp_bias"))
    if source.family.name != "llama" or has_bias:
        raise LoadError(
            f"only a llama model without biases can be upcycled, this is {source.family.name}"
            + (" with biases" if has_bias else ""),
            code="unsupported_derive",
        )
    kept = {
        key: value
        for key, value in config.items()
        if key not in ("attention_bias", "mlp_bias", "pretraining_tp", "num_experts")
    }
    family = family_named("mixtral")
    changed = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_types[0],
        "num_local_experts": derive.num_experts,
        "num_experts_per_tok": derive.top_k,
        "max_position_embeddings": model.context_tokens,
        "rms_norm_eps": model.norm_eps,
        "sliding_window": window,
    }
    if not isinstance(config.get("rope_parameters"), dict) and config.get("rope_theta") is None:
        changed["rope_theta"] = 10000.0
    settings = {
        **_renamed(source.settings, family.name),
        f"{family.name}.expert_count": derive.num_experts,
        f"{family.name}.expert_used_count": derive.top_k,
    }
    note = (
        f"upcycled: {derive.num_experts} copies of the MLP, top {derive.top_k}, "
        f"router from seed {derive.seed}; the same function as the dense model"
    )
    return replace(
        source,
        family=family,
        config=kept | changed,
        settings=settings,
        notes=(*source.notes, note),
    )


def _renamed(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings of the dense model under the derived one's architecture."""
    before = str(settings.get("general.architecture", "llama")) + "."
    found = {
        name + "." + key.removeprefix(before) if key.startswith(before) else key: value
        for key, value in settings.items()
    }
    return found | {"general.architecture": name}


def derived_router(derive: Derive, layer: int, hidden: int) -> npt.NDArray[np.float32]:
    """Router weights of one layer. Shape: float32 [num_experts, hidden].

    Entry i (row-major) is scale * sqrt(3 / hidden) * (2 u - 1) with u = (h >> 11) / 2^53 and
    h = mix(mix(seed + g (layer + 1)) + g (i + 1)); mix is the output function of splitmix64 and g
    its increment 0x9E3779B97F4A7C15. That is variance scale^2 / hidden, as a normal router of that
    scale has, from exact arithmetic only.
    """
    count = derive.num_experts * hidden
    with np.errstate(over="ignore"):
        start = _mix(np.array([derive.seed], np.uint64) + _GOLDEN * np.uint64(layer + 1))
        steps = np.arange(1, count + 1, dtype=np.uint64)
        hashed = _mix(start + _GOLDEN * steps)
    unit = (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    width = np.float64(derive.router_scale) * np.sqrt(np.float64(3.0) / np.float64(hidden))
    values = (width * (2.0 * unit - 1.0)).astype(np.float32)
    shaped: npt.NDArray[np.float32] = values.reshape(derive.num_experts, hidden)
    return shaped


def generated_bytes(name: str, derive: Derive | None, hidden: int) -> Bytes:
    """A dense region that no source file holds: a router, or the factor 1 of a matrix without one.

    Shape: uint8 [bytes].
    """
    if derive is None or not name.endswith(".router"):
        return np.ones(1, "<f4").view(np.uint8)
    router = derived_router(derive, int(name.split(".")[1]), hidden)
    return router.astype("<f4").reshape(-1).view(np.uint8)


def derived_origin(derive: Derive, sources: list[dict[str, Any]]) -> dict[str, Any]:
    """Origin of derived bytes: the recipe and the source ranges it was applied to."""
    recipe: Mapping[str, Any] = derive.recipe()
    return {"derived": {**recipe, "sources": sources}}


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed

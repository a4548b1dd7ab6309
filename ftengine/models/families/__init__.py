"""Built model families, one declarative file each. Read base.py first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families import (
    afmoe,
    bailing_hybrid,
    bailing_moe_v2,
    cohere2_moe,
    deepseek_v2,
    deepseek_v3,
    deepseek_v4,
    deepseek_v32,
    dots1,
    ernie4_5_moe,
    exaone_moe,
    flex_olmo,
    gemma3,
    gemma4,
    glm4_moe,
    glm4_moe_lite,
    glm_moe_dsa,
    gpt_oss,
    granitemoe,
    granitemoehybrid,
    hunyuan_v1_moe,
    hy_v3,
    jamba,
    kimi_linear,
    lfm2_moe,
    llama,
    llama4,
    longcat_flash,
    mimo_v2_flash,
    minimax,
    minimax_m2,
    minimax_m3,
    mistral4,
    mixtral,
    muse_glimmer,
    nemotron_h,
    olmoe,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    solar_open,
)
from ftengine.models.families.base import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    qwen3.FAMILY,
    mixtral.FAMILY,
    qwen3_moe.FAMILY,
    gpt_oss.FAMILY,
    qwen3_next.FAMILY,
    qwen3_5.FAMILY,
    qwen3_5_moe.FAMILY,
    gemma3.FAMILY,
    lfm2_moe.FAMILY,
    granitemoehybrid.FAMILY,
    glm4_moe_lite.FAMILY,
    deepseek_v2.FAMILY,
    deepseek_v3.FAMILY,
    deepseek_v32.FAMILY,
    glm_moe_dsa.FAMILY,
    mistral4.FAMILY,
    qwen2.FAMILY,
    qwen2_moe.FAMILY,
    olmoe.FAMILY,
    flex_olmo.FAMILY,
    granitemoe.FAMILY,
    granitemoe.SHARED,
    ernie4_5_moe.FAMILY,
    hunyuan_v1_moe.FAMILY,
    dots1.FAMILY,
    hy_v3.FAMILY,
    afmoe.FAMILY,
    exaone_moe.FAMILY,
    bailing_moe_v2.FAMILY,
    solar_open.FAMILY,
    glm4_moe.FAMILY,
    minimax_m2.FAMILY,
    mimo_v2_flash.FAMILY,
    longcat_flash.FAMILY,
    gemma4.FAMILY,
    kimi_linear.FAMILY,
    bailing_hybrid.FAMILY,
    jamba.FAMILY,
    minimax.FAMILY,
    cohere2_moe.FAMILY,
    phimoe.FAMILY,
    llama4.FAMILY,
    muse_glimmer.FAMILY,
    deepseek_v4.FAMILY,
    minimax_m3.FAMILY,
    nemotron_h.FAMILY,
)


_SHARED_WRAPPERS = frozenset({"Mistral3ForConditionalGeneration"})
"""Vision wrappers of several families: the language model inside says which one it is."""


def family_named(name: str) -> Family:
    """The family called `name`. Raises: LoadError listing what is built."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise _not_built(f"family {name!r}")


def family_of_config(config: Mapping[str, Any]) -> Family:
    """The family of a config.json, by architectures, else by model_type.

    Raises: LoadError listing what is built.
    """
    found = config.get("architectures")
    architectures = found if isinstance(found, list) else []
    model_type = config.get("model_type")
    inner = config.get("text_config")
    if isinstance(inner, dict) and _SHARED_WRAPPERS.intersection(architectures):
        for family in FAMILIES:
            if inner.get("model_type") in family.model_types:
                return family
    for family in FAMILIES:
        if any(name in family.architectures for name in architectures):
            return family
    if not architectures:
        for family in FAMILIES:
            if model_type in family.model_types:
                return family
    if not architectures and model_type is None:
        raise LoadError("config.json names neither architectures nor model_type")
    shown = ", ".join(str(name)[:80] for name in architectures[:2]) or "of unknown name"
    raise _not_built(f"architecture {shown} (family {str(model_type)[:80]})")


def family_of_gguf(arch: str, settings: Mapping[str, Any]) -> Family:
    """The family of a GGUF file's general.architecture; settings tell those that share one apart.

    Raises: LoadError listing what is built.
    """
    named = [family for family in FAMILIES if arch in family.gguf_archs]
    if not named:
        built = dict.fromkeys(name for family in FAMILIES for name in family.gguf_archs)
        raise _not_built(f"GGUF architecture {arch[:80]!r}", built)
    for family in sorted(named, key=lambda family: not family.gguf_only):
        if all(_setting(settings, arch, key) in known for key, known in family.gguf_only):
            return family
    raise _not_built(f"this kind of GGUF architecture {arch[:80]!r}", [f.name for f in named])


def _setting(settings: Mapping[str, Any], arch: str, key: str) -> Any:
    return settings.get(key if key.startswith("tokenizer.") else f"{arch}.{key}")


def _not_built(what: str, names: Iterable[str] | None = None) -> LoadError:
    built = ", ".join(names or (family.name for family in FAMILIES))
    return LoadError(f"{what} is not built yet; built: {built}", code="unsupported_family")

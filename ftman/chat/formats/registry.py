"""The chat formats there are, by name and by what a template looks like."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ftman.chat.formats import (
    command,
    deepseek_dsml,
    deepseek_v3,
    gemma,
    glm,
    granite,
    harmony,
    hermes,
    hunyuan,
    hy3,
    jamba,
    kimi,
    lfm2,
    llama3,
    llama4,
    minimax,
    minimax_m3,
    mistral,
    muse,
    plain,
    qwen3_coder,
    solar,
    think,
)
from ftman.chat.formats.base import ChatFormat

FORMATS: tuple[ChatFormat, ...] = (
    muse.FORMAT,
    harmony.FORMAT,
    deepseek_dsml.FORMAT,
    deepseek_v3.FORMAT,
    kimi.FORMAT,
    solar.FORMAT,
    minimax.FORMAT,
    minimax_m3.FORMAT,
    hy3.FORMAT,
    glm.FORMAT,
    qwen3_coder.FORMAT,
    gemma.FORMAT,
    mistral.FORMAT,
    granite.FORMAT,
    command.FORMAT,
    lfm2.FORMAT,
    llama4.FORMAT,
    hunyuan.FORMAT,
    jamba.FORMAT,
    hermes.FORMAT,
    llama3.FORMAT,
    think.FORMAT,
    plain.FORMAT,
)
"""In the order they are tried on a template: the most telling first."""

ALIASES = {
    "qwen3": "hermes",
    "qwen3-thinking": "hermes",
    "qwen3-vl-instruct": "hermes",
    "qwen3-vl-thinking": "hermes",
    "qwen": "hermes",
    "qwen3-coder": "qwen3_coder",
    "qwen3.5": "qwen3_coder",
    "ornith": "qwen3_coder",
    "nemotron-3-nano": "qwen3_coder",
    "nemotron-3.5-nano": "qwen3_coder",
    "ministral": "mistral",
    "deepseek3": "deepseek_v3",
    "deepseek3.1": "deepseek_v3",
    "gemma4": "gemma",
    "gemma4-no-thinking": "gemma",
    "functiongemma": "gemma",
    "glm-4.7": "glm",
    "glm-ocr": "glm",
    "laguna": "glm",
    "poolside-v1": "glm",
    "lfm2-thinking": "lfm2",
    "passthrough": "plain",
}
"""Ollama's parser names for what we call otherwise."""


def format_named(name: str) -> ChatFormat | None:
    """The format of a name (ours or Ollama's), None when there is none."""
    wanted = ALIASES.get(name, name)
    return next((item for item in FORMATS if item.name == wanted), None)


@lru_cache(maxsize=64)
def detect(template: str) -> ChatFormat:
    """The format that a template, Jinja or Go, is written for."""
    for item in FORMATS:
        if any(all(sign in template for sign in group) for group in item.signs):
            return item
    return plain.FORMAT


def with_calls(fmt: ChatFormat) -> ChatFormat:
    """The format, with calls as bare JSON objects if it has none: for templates that show tools in
    a form of their own."""
    if fmt.has_calls:
        return fmt
    return replace(fmt, name=f"{fmt.name}+json", calls=llama3.FORMAT.calls)

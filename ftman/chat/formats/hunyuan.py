"""Hunyuan A13B: Jamba's calls, and an answer between marks of its own."""

from __future__ import annotations

from dataclasses import replace

from ftman.chat.formats import jamba

_ANSWER = ("<answer>", "</answer>")

FORMAT = replace(
    jamba.FORMAT,
    name="hunyuan",
    wraps=_ANSWER,
    lead=_ANSWER[0],
    visible=(*jamba.FORMAT.visible, *_ANSWER),
    signs=(("<|extra_0|>",), ("<tool_calls>", "<answer>")),
)

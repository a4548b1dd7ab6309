"""Think: reasoning in <think> marks, and no tool calls of its own."""

from __future__ import annotations

from ftman.chat.formats.base import ChatFormat, Marks

FORMAT = ChatFormat(
    name="think",
    reasoning=Marks("<think>", "</think>"),
    visible=("<think>", "</think>"),
    signs=(("<think>", "</think>"), ("</think>", "split(")),
)

"""MiniMax M2: invocations as XML in a section of their own; reasoning is always on."""

from __future__ import annotations

from ftman.chat.formats.base import ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.invoke import InvokeTags

_SECTION = "minimax:tool_call"

FORMAT = ChatFormat(
    name="minimax",
    reasoning=Marks("<think>", "</think>"),
    calls=InvokeTags((_SECTION,)).syntax(),
    visible=("<think>", "</think>", f"<{_SECTION}>", f"</{_SECTION}>"),
    switch=ThinkSwitch(flags=()),
    signs=((_SECTION,),),
)

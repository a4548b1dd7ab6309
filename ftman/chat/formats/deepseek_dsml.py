"""DeepSeek V3.2 and V4: invocations in DSML, whose parameters tell whether they are strings."""

from __future__ import annotations

from ftman.chat.formats.base import ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.invoke import InvokeTags

_PREFIX = "\uff5cDSML\uff5c"

FORMAT = ChatFormat(
    name="deepseek_dsml",
    reasoning=Marks("<think>", "</think>"),
    calls=InvokeTags(("function_calls", "tool_calls"), _PREFIX, says_string=True).syntax(),
    visible=("<think>", "</think>", _PREFIX),
    switch=ThinkSwitch(flags=("thinking", "enable_thinking")),
    signs=((_PREFIX,),),
)

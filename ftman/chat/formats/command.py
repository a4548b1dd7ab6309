"""Command A and its small relatives: reasoning, text and a JSON list of calls, each in marks.

One call may stand there without a list.
"""

from __future__ import annotations

import json

from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import listed_calls
from ftman.chat.formats.calls_xml import one_or_more
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
_WRAPS = ("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")


def _parse(run: Run, mark: str) -> Steps:
    # the model's own ids begin anew in every turn
    yield from listed_calls(run, _CLOSE, own_ids=False)


def _grammar(wanted: CallGrammar) -> str:
    calls = []
    for tool in wanted.tools:
        head = f'", "tool_name": {json.dumps(tool.name)}, "parameters": '
        calls.append(
            f"""{wanted.literal('{"tool_call_id": "')} /[0-9]+/ {wanted.literal(head)} """
            f"{wanted.json(tool.parameters)} {wanted.literal('}')}"
        )
    body = one_or_more(wanted, calls, ",\n    ")
    opening, closing = wanted.literal(f"{_OPEN}[\n    "), wanted.literal(f"\n]{_CLOSE}")
    return f"{opening} {body} {closing}"


FORMAT = ChatFormat(
    name="command",
    reasoning=Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    calls=CallSyntax(opens=(_OPEN,), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    wraps=_WRAPS,
    lead=_WRAPS[0],
    visible=("<|START_THINKING|>", "<|END_THINKING|>", _OPEN, _CLOSE, *_WRAPS),
    switch=ThinkSwitch(flags=("reasoning",)),
    signs=((_OPEN,),),
)

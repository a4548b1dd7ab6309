"""How a wish to think, or not to, reaches a template; and what to say when it cannot."""

from __future__ import annotations

import re
from typing import Any

from ftman.chat.formats.base import ChatFormat

LEVELS = ("minimal", "low", "medium", "high", "max")
_DEFAULT_LEVEL = "medium"


def think_values(
    fmt: ChatFormat, template: str, think: bool | str | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Template variables for `think`, and notes on what the template cannot do.

    think None leaves everything to the template. `think` itself is among the variables, for
    templates in Go.
    """
    if think is None:
        return {}, ()
    switch = fmt.switch
    values: dict[str, Any] = {"think": think}
    values |= dict.fromkeys(switch.flags, bool(think))
    if isinstance(think, str):
        values[switch.effort] = switch.levels.get(think, think)
    elif think and switch.on:
        values[switch.effort] = switch.on
    elif not think and switch.off:
        values[switch.effort] = switch.off
    return values, _notes(fmt, template, think)


def _notes(fmt: ChatFormat, template: str, think: bool | str) -> tuple[str, ...]:
    if think is False and fmt.switch.never_off:
        return (
            f"thinking cannot be switched off in the {fmt.name} format; it was set to its least",
        )
    names = [".Think", ".IsThinkSet", *fmt.switch.flags]
    if fmt.switch.on or fmt.switch.off:
        names.append(fmt.switch.effort)
    if think is False and not any(_mentions(template, name) for name in names):
        return ("this model's template cannot switch thinking off",)
    levels = (".ThinkLevel", fmt.switch.effort)
    if isinstance(think, str) and not any(_mentions(template, name) for name in levels):
        return (f"this model's template knows no levels of thinking; {think!r} means on",)
    return ()


def _mentions(template: str, name: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(name)}(?!\w)", template) is not None

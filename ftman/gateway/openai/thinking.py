"""The many ways of saying whether and how hard a model should reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ftman.gateway.body import Fields

LEVELS = ("minimal", "low", "medium", "high", "xhigh", "ultra", "max")


@dataclass(frozen=True)
class Thinking:
    """What was asked for. values: for the template, under its own names."""

    think: bool | str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    effort: str = ""


def parse_thinking(fields: Fields) -> Thinking:
    """Read `reasoning_effort`, `reasoning`, `thinking` and `chat_template_kwargs`.

    The template's own switch wins, being the most exact. Agents send an effort to every model, so
    it goes to the service as a wish, not as a demand.
    Raises: FieldError for a level or a type that does not exist.
    """
    values = dict(fields.mapping("chat_template_kwargs"))
    switch = values.pop("enable_thinking", None)
    if switch is not None and not isinstance(switch, bool):
        fields.wrong("chat_template_kwargs.enable_thinking", "boolean", switch)
    effort = _effort(fields)
    think = switch if switch is not None else _asked(fields, effort)
    return Thinking(think, values, effort)


def _asked(fields: Fields, effort: str) -> bool | str | None:
    if effort:
        return False if effort == "none" else effort
    enabled = fields.child("reasoning").get("enabled")
    if isinstance(enabled, bool):
        return enabled
    thinking = fields.get("thinking")
    if isinstance(thinking, dict) and isinstance(thinking.get("type"), str):
        # Clients invent new types; only this one means off.
        return bool(thinking["type"] != "disabled")
    return None


def _effort(fields: Fields) -> str:
    effort = fields.child("reasoning").text("effort") or fields.text("reasoning_effort")
    if effort and effort != "none" and effort not in LEVELS:
        words = ", ".join(f'"{level}"' for level in LEVELS)
        fields.invalid("reasoning_effort", f'is "{effort[:20]}" (must be {words}, or "none")')
    return effort

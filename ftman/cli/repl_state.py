"""What a conversation on the terminal remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftman.errors import UsageError

THINK_LEVELS = ("low", "medium", "high", "max")


@dataclass
class ReplState:
    """Model, messages and switches; changed only by the loop and its commands."""

    model: str
    shown: Mapping[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    word_wrap: bool = True
    verbose: bool = False
    hide_thinking: bool = False

    def set_system(self, text: str) -> None:
        """Use a system message from here on; one that was just set is replaced."""
        self.system = text
        message = {"role": "system", "content": text}
        if self.messages and self.messages[-1]["role"] == "system":
            self.messages[-1] = message
        else:
            self.messages.append(message)

    def clear(self) -> None:
        """Forget the conversation, keep the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def request(self) -> dict[str, Any]:
        """Body of the next chat request."""
        body: dict[str, Any] = {"model": self.model, "messages": self.messages, **self.settings}
        if self.parameters:
            body["options"] = self.parameters
        return body


def think_value(text: str, what: str) -> bool | str:
    """What `think` of a request shall be, as written.   Raises: UsageError, naming `what`."""
    if text in ("true", "false"):
        return text == "true"
    if text in THINK_LEVELS:
        return text
    raise UsageError(
        f'invalid value for {what}: "{text}" (must be true, false, high, medium, low, or max)'
    )

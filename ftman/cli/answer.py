"""One answer as it streams: text, thinking, warnings, timings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ftman.cli.output import Output, columns, without_controls
from ftman.cli.units import go_duration
from ftman.cli.wrap import WordWrap
from ftman.errors import FtmanError

_TIMINGS = (
    ("total duration:", "total_duration"),
    ("load duration:", "load_duration"),
)


class AnswerView:
    """Writes the objects of one chat or generate stream to stdout.

    text and thinking gather what was said, also when the answer is cut short. told: warnings of
    earlier answers, which are not repeated; those of this one are added.
    """

    def __init__(
        self,
        out: Output,
        *,
        wrap: bool = True,
        hide_thinking: bool = False,
        told: set[str] | None = None,
    ):
        self._told = set() if told is None else told
        self.text = ""
        self.thinking = ""
        self._out = out
        self._hide_thinking = hide_thinking
        self._wrap = WordWrap(columns() if wrap and out.stdout_is_tty else 0)
        self._in_thinking = False

    def show(self, stream: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Write until the final object, end the lines, and return it.   Raises: FtmanError."""
        try:
            return self._until_done(stream)
        except FtmanError:
            if self._out.stdout_is_tty and (self.text or self.thinking):
                self._out.data("")  # what went wrong begins a line of its own
            raise

    def _until_done(self, stream: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        for item in stream:
            self._feed(item)
            if item.get("done"):
                self._end(str(item.get("warning") or ""))
                return item
        raise FtmanError(
            "the manager ended the stream before the answer was complete",
            hint="Look at: ft logs",
            code="stream_ended",
        )

    def _feed(self, item: Mapping[str, Any]) -> None:
        message = item.get("message")
        part = message if isinstance(message, dict) else item
        thinking = str(part.get("thinking") or "")
        text = str(part.get("content" if message else "response") or "")
        self.thinking += thinking
        self.text += text
        if self._out.as_json:
            self._out.json_line(item)
            return
        if thinking and not self._hide_thinking:
            if not self._in_thinking:
                self._in_thinking = True
                self._write("Thinking...\n", dim=True)
            self._write(thinking, dim=True)
        if text:
            self._leave_thinking()
            self._write(text)
        for call in part.get("tool_calls") or ():
            self._write(_call_text(call))

    def _end(self, warning: str) -> None:
        """Two newlines, as Ollama ends an answer; a warning comes after them, not in a line."""
        self._leave_thinking()
        if not self._out.as_json:
            self._out.data("\n")
        news = [part for part in warning.split("; ") if part and part not in self._told]
        if news:
            self._told.update(news)
            self._out.warn("; ".join(news))

    def _leave_thinking(self) -> None:
        if self._in_thinking:
            self._in_thinking = False
            self._write("\n...done thinking.\n\n", dim=True)

    def _write(self, text: str, *, dim: bool = False) -> None:
        if self._out.stdout_is_tty:
            text = without_controls(text)
        wrapped = self._wrap.feed(text)
        self._out.data(self._out.dim(wrapped) if dim else wrapped, end="")


def timings_text(final: Mapping[str, Any]) -> str:
    """The lines of --verbose; what was not measured is left out."""
    rows = [(name, go_duration(final[key])) for name, key in _TIMINGS if final.get(key)]
    for name in ("prompt eval", "eval"):
        key = name.replace(" ", "_")
        count, spent = final.get(f"{key}_count") or 0, final.get(f"{key}_duration") or 0
        if count:
            rows.append((f"{name} count:", f"{count} token(s)"))
        if spent:
            rows.append((f"{name} duration:", go_duration(spent)))
            rows.append((f"{name} rate:", f"{count / (spent / 1e9):.2f} tokens/s"))
    return "\n".join(f"{name:<22}{value}" for name, value in rows)


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    name = function.get("name", "")
    return f"Model called a non-existent function '{name}()' with arguments: {arguments}\n"

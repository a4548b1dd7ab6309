"""Arguments as pairs of a key tag and a value tag; shared by GLM and Hy3."""

from __future__ import annotations

from dataclasses import dataclass

from ftman.chat.formats.arguments import ArgumentsWriter, raw_value, types_of
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import CallWriter, Run


@dataclass(frozen=True)
class ArgTags:
    """The tags of one family. suffix: what stands at the end of each name."""

    suffix: str = ""

    def start(self, name: str) -> str:
        """An opening tag."""
        return f"<{name}{self.suffix}>"

    def end(self, name: str) -> str:
        """A closing tag."""
        return f"</{name}{self.suffix}>"

    @property
    def key(self) -> str:
        """What begins a pair."""
        return self.start("arg_key")

    @property
    def visible(self) -> tuple[str, ...]:
        """All tags of pairs."""
        return tuple(
            part(name) for name in ("arg_key", "arg_value") for part in (self.start, self.end)
        )

    def arguments(self, run: Run, call: CallWriter, mark: str, close: str) -> Steps:
        """Read pairs up to and over `close`. mark: what was read before, the first key or none."""
        reader = run.reader
        schema = run.schemas.get(call.name, {})
        writer = ArgumentsWriter(call)
        while mark != close:
            if mark != self.key:
                yield from reader.space()
                mark = yield from reader.choose(self.key, close)
                continue
            key = (yield from reader.collect(self.end("arg_key"), limit=256)).strip()
            writer.key(key)
            yield from reader.space()
            yield from reader.expect(self.start("arg_value"))
            mark = self.end("arg_value")
            yield from raw_value(reader, writer, types_of(schema, key), (mark,))
        writer.complete()

    def layout(self, name: str) -> tuple[str, str]:
        """The texts around the value of a parameter, for a grammar."""
        head = f"\n{self.key}{name}{self.end('arg_key')}\n{self.start('arg_value')}"
        return head, self.end("arg_value")

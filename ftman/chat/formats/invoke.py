"""Sections of invocations with named parameters, as tags; shared by MiniMax and DeepSeek's DSML."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from ftman.chat.formats.arguments import ArgumentsWriter, raw_value, types_of
from ftman.chat.formats.base import CallGrammar, CallSyntax
from ftman.chat.formats.calls_xml import Layout, one_or_more, parameters_grammar
from ftman.chat.formats.reader import BrokenCallError, Reader, Steps
from ftman.chat.formats.run import Run

_NAME = re.compile(r'\s*name\s*=\s*"([^"]*)"(?:\s+string\s*=\s*"(true|false)")?\s*')
_TYPES = {"true": frozenset(["string"]), "false": frozenset(["object"])}


@dataclass(frozen=True)
class InvokeTags:
    """The names of the tags. prefix: what stands before each name. says_string: parameters tell
    whether their text is a string."""

    sections: tuple[str, ...]
    prefix: str = ""
    says_string: bool = False

    def start(self, name: str) -> str:
        """The beginning of an opening tag."""
        return f"<{self.prefix}{name}"

    def end(self, name: str) -> str:
        """A closing tag."""
        return f"</{self.prefix}{name}>"

    def parse(self, run: Run, mark: str) -> Steps:
        """Read one section, its opening tag being read already."""
        reader = run.reader
        ends = tuple(self.end(name) for name in self.sections)
        while True:
            yield from reader.space()
            if (yield from reader.choose(self.start("invoke"), *ends)) in ends:
                break
            yield from self._invoke(run)
            yield from reader.space()
            if not (yield from reader.peek()):
                break
            run.begin_call("")
        yield from reader.space()

    def syntax(self) -> CallSyntax:
        """The call syntax with these tags."""
        return CallSyntax(
            opens=tuple(f"{self.start(name)}>" for name in self.sections),
            parse=self.parse,
            closes=tuple(self.end(name) for name in self.sections),
            grammar=self._grammar,
        )

    def _invoke(self, run: Run) -> Steps:
        reader = run.reader
        call = run.call((yield from _attributes(reader))[0])
        schema = run.schemas.get(call.name, {})
        writer = ArgumentsWriter(call)
        start, end = self.start("parameter"), self.end("invoke")
        while True:
            yield from reader.space()
            if (yield from reader.choose(start, end)) == end:
                break
            name, is_string = yield from _attributes(reader)
            writer.key(name)
            types = _TYPES.get(is_string) or types_of(schema, name)
            yield from raw_value(reader, writer, types, (self.end("parameter"),))
        writer.complete()

    def _grammar(self, wanted: CallGrammar) -> str:
        section = self.sections[-1]
        calls = [
            f"{wanted.literal(self._opening(tool.name))} "
            f"{parameters_grammar(wanted, tool.parameters, self._layout(tool.parameters))} "
            f"{wanted.literal(self.end('invoke') + chr(10))}"
            for tool in wanted.tools
        ]
        opening = wanted.literal(f"{self.start(section)}>\n")
        return f"{opening} {one_or_more(wanted, calls, '')} {wanted.literal(self.end(section))}"

    def _opening(self, name: str) -> str:
        return f'{self.start("invoke")} name="{name}">\n'

    def _layout(self, schema: object) -> Layout:
        def layout(name: str) -> tuple[str, str]:
            types = types_of(schema, name) if isinstance(schema, dict) else frozenset()
            told = ""
            if self.says_string:
                told = ' string="true"' if not types or "string" in types else ' string="false"'
            head = f'{self.start("parameter")} name="{name}"{told}>'
            return head, self.end("parameter") + "\n"

        return layout


def _attributes(reader: Reader) -> Generator[None, None, tuple[str, str]]:
    found = _NAME.fullmatch((yield from reader.collect(">", limit=400)))
    if found is None:
        raise BrokenCallError("a tag in it has no name")
    return found.group(1), found.group(2) or ""

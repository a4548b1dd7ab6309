"""The syntax tree of a Go template, and the two questions asked of it without running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Text:
    """Literal text."""

    text: str


@dataclass(frozen=True)
class Literal:
    """A string, number, bool or nil constant."""

    value: Any


@dataclass(frozen=True)
class Dot:
    """The cursor `.`."""


@dataclass(frozen=True)
class Field:
    """`.A.B`: a chain of names from the cursor."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Variable:
    """`$x.A.B`; `$` alone is the root value."""

    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chain:
    """`(pipeline).A.B`."""

    base: Pipe
    names: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """A function name in command position."""

    name: str


@dataclass(frozen=True)
class Pipe:
    """Commands joined by `|`, with the variables that the result is given to."""

    line: int
    commands: tuple[tuple[Operand, ...], ...]
    variables: tuple[str, ...] = ()
    declares: bool = True


Operand = Literal | Dot | Field | Variable | Chain | Function | Pipe


@dataclass(frozen=True)
class Action:
    """`{{ pipeline }}`."""

    pipe: Pipe


@dataclass(frozen=True)
class Branch:
    """`if`, `with` or `range` (kind) with its else part."""

    kind: str
    pipe: Pipe
    body: tuple[Node, ...]
    orelse: tuple[Node, ...]


@dataclass(frozen=True)
class Invoke:
    """`{{ template "name" pipeline }}`."""

    line: int
    name: str
    pipe: Pipe | None


@dataclass(frozen=True)
class Jump:
    """`break` or `continue` (kind)."""

    kind: str


Node = Text | Action | Branch | Invoke | Jump


def operands(nodes: tuple[Node, ...]) -> Iterator[Operand]:
    """Every operand below some nodes, nested pipelines included."""
    for node in nodes:
        if isinstance(node, Action | Branch):
            yield from _in_pipe(node.pipe)
        if isinstance(node, Invoke) and node.pipe is not None:
            yield from _in_pipe(node.pipe)
        if isinstance(node, Branch):
            yield from operands(node.body)
            yield from operands(node.orelse)


def pipe_names(pipe: Pipe) -> set[str]:
    """All field names that a pipeline mentions."""
    return {name for item in _in_pipe(pipe) for name in names_of(item)}


def names_of(item: Operand) -> tuple[str, ...]:
    """Field names of one operand."""
    return item.names if isinstance(item, Field | Variable | Chain) else ()


def _in_pipe(pipe: Pipe) -> Iterator[Operand]:
    for command in pipe.commands:
        for item in command:
            yield item
            if isinstance(item, Pipe):
                yield from _in_pipe(item)
            elif isinstance(item, Chain):
                yield from _in_pipe(item.base)


class Cut:
    """Drops everything after the first place where a field is printed."""

    def __init__(self, name: str):
        self._name = name
        self._done = False

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes up to that place. Conditions are not looked into."""
        kept: list[Node] = []
        for node in nodes:
            if self._done:
                break
            kept.append(self._node(node))
        return tuple(kept)

    def _node(self, node: Node) -> Node:
        if isinstance(node, Action):
            return Action(self._pipe(node.pipe))
        if isinstance(node, Branch):
            body = self.nodes(node.body)
            return dataclasses.replace(node, body=body, orelse=self.nodes(node.orelse))
        return node

    def _pipe(self, pipe: Pipe) -> Pipe:
        commands: list[tuple[Operand, ...]] = []
        for command in pipe.commands:
            kept: list[Operand] = []
            for item in command:
                if self._done:
                    break
                self._done = isinstance(item, Field) and self._name in item.names
                kept.append(self._pipe(item) if isinstance(item, Pipe) else item)
            if kept:
                commands.append(tuple(kept))
        return dataclasses.replace(pipe, commands=tuple(commands))

"""Runs a parsed Go template over values. Bounded in steps, depth and output; no I/O.

Missing names are zero values at any depth, which is more forgiving than Go with structs: a template
written for a newer field set still runs. Read with nodes.py (the tree) and functions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ftman.chat import traced
from ftman.chat.gotext.functions import SHORT_CIRCUIT, CallError
from ftman.chat.gotext.lexer import template_error
from ftman.chat.gotext.nodes import (
    Action,
    Branch,
    Chain,
    Dot,
    Field,
    Function,
    Invoke,
    Jump,
    Literal,
    Node,
    Operand,
    Pipe,
    Text,
    Variable,
)
from ftman.chat.gotext.parser import Parsed
from ftman.chat.gotext.values import text_of, truth

MAX_STEPS = 2_000_000
MAX_OUTPUT_CHARS = 64 << 20
MAX_DEPTH = 100

Functions = Mapping[str, Callable[..., Any]]
_NOTHING = object()


class _Break(Exception):
    """{{break}}"""


class _Continue(Exception):
    """{{continue}}"""


@dataclass
class _Slot:
    """One variable."""

    name: str
    value: Any


def evaluate(parsed: Parsed, values: Mapping[str, Any], functions: Functions) -> str:
    """Render a parsed template.

    Returns: text whose value parts are traced.   Raises: UsageError with the line.
    """
    run = _Run(parsed, functions)
    run.template(parsed.root, values)
    return traced.join(run.out)


class _Run:
    def __init__(self, parsed: Parsed, functions: Functions):
        self._defined = parsed.defined
        self._functions = functions
        self._variables: list[_Slot] = []
        self._steps = self._size = self._depth = 0
        self._line = 1
        self.out: list[str] = []

    def template(self, nodes: tuple[Node, ...], dot: Any) -> None:
        """Run one template with fresh variables; `$` is its argument."""
        kept = self._variables
        self._variables = [_Slot("$", dot)]
        self._nodes(nodes, dot)
        self._variables = kept

    def _nodes(self, nodes: tuple[Node, ...], dot: Any) -> None:
        for node in nodes:
            self._step()
            if isinstance(node, Text):
                self._print(node.text)
            elif isinstance(node, Action):
                value = self._pipe(node.pipe, dot)
                if not node.pipe.variables:
                    self._print(text_of(value))
            elif isinstance(node, Branch):
                self._branch(node, dot)
            elif isinstance(node, Invoke):
                self._invoke(node, dot)
            else:
                self._jump(node)

    def _jump(self, node: Jump) -> None:
        if node.kind == "break":
            raise _Break
        raise _Continue

    def _branch(self, node: Branch, dot: Any) -> None:
        known = len(self._variables)
        if node.kind == "range":
            self._range(node, dot)
        else:
            value = self._pipe(node.pipe, dot)
            if truth(value):
                self._nodes(node.body, value if node.kind == "with" else dot)
            else:
                self._nodes(node.orelse, dot)
        del self._variables[known:]

    def _range(self, node: Branch, dot: Any) -> None:
        value = self._pipe(node.pipe, dot, assign=False)
        known = len(self._variables)
        empty = True
        for key, item in self._pairs(value):
            empty = False
            self._step()
            self._bind_pair(node.pipe, key, item)
            try:
                self._nodes(node.body, item)
            except _Continue:
                pass
            except _Break:
                break
            finally:
                del self._variables[known:]
        if empty:
            self._nodes(node.orelse, dot)

    def _pairs(self, value: Any) -> Iterable[tuple[Any, Any]]:
        if value is None:
            return ()
        if isinstance(value, Mapping):
            return [(key, value[key]) for key in sorted(value)]
        if isinstance(value, list | tuple):
            return enumerate(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return ((idx, idx) for idx in range(value))
        raise self._error(f"range can't iterate over {text_of(value)[:40]}")

    def _bind_pair(self, pipe: Pipe, key: Any, item: Any) -> None:
        if len(pipe.variables) == 1:
            self._bind(pipe, pipe.variables[0], item)
        elif len(pipe.variables) == 2:
            self._bind(pipe, pipe.variables[0], key)
            self._bind(pipe, pipe.variables[1], item)

    def _bind(self, pipe: Pipe, name: str, value: Any) -> None:
        if pipe.declares:
            self._variables.append(_Slot(name, value))
            return
        self._slot(name).value = value

    def _slot(self, name: str) -> _Slot:
        for slot in reversed(self._variables):
            if slot.name == name:
                return slot
        raise self._error(f"undefined variable: {name}")

    def _invoke(self, node: Invoke, dot: Any) -> None:
        self._line = node.line
        nodes = self._defined.get(node.name)
        if nodes is None:
            raise self._error(f'template "{node.name}" not defined')
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"templates call each other more than {MAX_DEPTH} deep")
        self.template(nodes, None if node.pipe is None else self._pipe(node.pipe, dot))
        self._depth -= 1

    def _pipe(self, pipe: Pipe, dot: Any, *, assign: bool = True) -> Any:
        self._line = pipe.line
        value: Any = _NOTHING
        for command in pipe.commands:
            value = self._command(command, dot, value)
        if assign:
            for name in pipe.variables:
                self._bind(pipe, name, value)
        return value

    def _command(self, command: tuple[Operand, ...], dot: Any, last: Any) -> Any:
        self._step()
        head, rest = command[0], command[1:]
        if isinstance(head, Function):
            return self._call(head.name, rest, dot, last)
        if rest or last is not _NOTHING:
            raise self._error("can't give arguments to something that is no function")
        return self._operand(head, dot)

    def _operand(self, item: Operand, dot: Any) -> Any:
        if isinstance(item, Literal):
            return item.value
        if isinstance(item, Dot):
            return dot
        if isinstance(item, Field):
            return self._fields(dot, item.names)
        if isinstance(item, Variable):
            return self._fields(self._slot(item.name).value, item.names)
        if isinstance(item, Chain):
            return self._fields(self._pipe(item.base, dot), item.names)
        if isinstance(item, Function):
            return self._call(item.name, (), dot, _NOTHING)
        return self._pipe(item, dot)

    def _fields(self, value: Any, names: tuple[str, ...]) -> Any:
        for name in names:
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise self._error(f"can't evaluate field {name} in {text_of(value)[:40]!r}")
            value = value.get(name)
        return value

    def _call(self, name: str, items: tuple[Operand, ...], dot: Any, last: Any) -> Any:
        if name in SHORT_CIRCUIT:
            return self._decide(name, items, dot, last)
        arguments = [self._operand(item, dot) for item in items]
        if last is not _NOTHING:
            arguments.append(last)
        try:
            return self._functions[name](*arguments)
        except CallError as error:
            raise self._error(f"error calling {name}: {error}") from None
        except TypeError:
            raise self._error(f"wrong number of args for {name}: got {len(arguments)}") from None

    def _decide(self, name: str, items: tuple[Operand, ...], dot: Any, last: Any) -> Any:
        """`and` gives the first false argument or the last one, `or` the first true one."""
        if not items and last is _NOTHING:
            raise self._error(f"wrong number of args for {name}: want at least 1 got 0")
        value: Any = None
        for item in items:
            value = self._operand(item, dot)
            if truth(value) == (name == "or"):
                return value
        return value if last is _NOTHING else last

    def _print(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_OUTPUT_CHARS:
            raise self._error(f"the output is above the limit of {MAX_OUTPUT_CHARS} characters")
        self.out.append(text)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise self._error(f"it takes more than the limit of {MAX_STEPS} steps")

    def _error(self, message: str) -> Exception:
        return template_error(message, self._line)

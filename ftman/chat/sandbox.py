"""The Jinja environment for chat templates: sandboxed, bounded, and following text origins.

Behaves as the reference environment for chat templates (trimmed blocks, loop controls, raw JSON,
`raise_exception`, `strftime_now`, the generation block), on `Traced` strings. What a filter or a
call derives from values without being followed exactly is marked as a value as a whole. Runs in the
helper process only (template_child.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from ftman.chat import traced
from ftman.chat.traced import Traced

MAX_OUTPUT_CHARS = 64 << 20
_MAX_POWER = 10_000
_EXACT = frozenset(
    [
        "trim",
        "upper",
        "lower",
        "capitalize",
        "reverse",
        "default",
        "d",
        "first",
        "last",
        "attr",
        "min",
        "max",
        "random",
        "sum",
    ]
)
"""Filters that only pick values, or use methods that `Traced` follows."""
_TRANSPARENT = (bool, int, float, list, tuple, dict, set, Undefined, type(None))
"""Types whose printed text holds no value text that `origin_within` cannot see."""


class RaisedByTemplate(TemplateRuntimeError):
    """The template itself refused the conversation, with its own words."""


class OutputLimitError(TemplateRuntimeError):
    """The template made more text than a prompt may have."""


class _Generator(CodeGenerator):
    """Generates code that joins and prints through the environment, so that origins survive."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.tilde((")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("environment.text_of(")


class _GenerationBlock(Extension):
    """`{% generation %}` marks assistant text for training; here its body is printed as it is."""

    tags = {"generation"}  # noqa: RUF012 - the base class's own form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. `now` is the local time that templates are told."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(["%", "*", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlock],
        )
        self.now = datetime.min
        exact: dict[str, Callable[..., Any]] = {
            "join": _join_filter,
            "replace": _replace_filter,
            "string": lambda value: self.text_of(value),
            "format": lambda value, *args, **names: traced.percent(_text(value), names or args),
            "tojson": _guarded(_tojson),
        }
        self.filters = {
            name: fn if name in _EXACT or name in exact else _guarded(fn)
            for name, fn in {**self.filters, **exact}.items()
        }
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _guarded(lambda form: self.now.strftime(form))

    concat = staticmethod(lambda parts: _bounded_join(parts))

    def tilde(self, parts: Iterable[Any]) -> str:
        """The `~` operator."""
        return _bounded_join([self.text_of(part) for part in parts])

    def text_of(self, value: Any) -> str:
        """What `{{ value }}` prints; text made from a structure that holds values is a value."""
        if isinstance(value, str):
            return value if isinstance(value, Traced) else str(value)
        origin = traced.origin_within(value)
        if not origin and not isinstance(value, _TRANSPARENT):
            origin = traced.OTHER_VALUE
        return traced.taint(str(value), origin)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr == "encode":
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        pattern, form = value.__self__, _Formatter(self)
        if value.__name__ == "format_map":
            return lambda names: traced.join(_format_pieces(form, pattern, (), names))
        return lambda *args, **names: traced.join(_format_pieces(form, pattern, args, names))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
            _check_product(right, left)
        elif operator == "**" and abs(right) > _MAX_POWER:
            raise OutputLimitError(f"the exponent {right} is above the limit of {_MAX_POWER}")
        elif isinstance(left, str):
            return (
                traced.percent(left, right) if traced.origin_within((left, right)) else left % right
            )
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if not isinstance(owner, str) or isinstance(__obj, Macro):
            return super().call(__context, __obj, *args, **kwargs)
        given = tuple(list(a) if isinstance(a, Iterator) else a for a in args)
        origin = traced.origin_within((given, kwargs))
        if origin and not isinstance(owner, Traced):
            followed = Traced(owner, traced.runs_of(owner))
            __obj = getattr(followed, __obj.__name__)
        return _marked(super().call(__context, __obj, *given, **kwargs), origin)


class _Formatter(SandboxedFormatter):
    """Looks fields up as the sandbox does."""

    def field(self, name: str, args: Any, names: Any, auto: Iterator[int]) -> Any:
        """The object that a replacement field names; empty names count up."""
        head = name.replace("[", ".").partition(".")[0]
        full = f"{next(auto)}{name}" if head == "" else name
        return self.get_field(full, args, names)[0]


def _format_pieces(form: _Formatter, pattern: str, args: Any, names: Any) -> Iterator[str]:
    auto = iter(range(len(args)))
    at = 0
    for literal, name, spec, conversion in form.parse(pattern):
        yield _literal(pattern, literal, at)
        at += len(literal)
        if name is None:
            continue
        value = form.field(name, args, names, auto)
        if not spec and not conversion and isinstance(value, str):
            yield value
            continue
        text = form.format_field(form.convert_field(value, conversion or None), spec or "")
        yield traced.taint(text, traced.origin_within(value))


def _literal(pattern: str, literal: str, at: int) -> str:
    """A format pattern that is a value itself gives value literals."""
    return traced.taint(literal, traced.origin_within(pattern))


def _bounded_join(parts: Iterable[str]) -> str:
    kept: list[str] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_OUTPUT_CHARS:
            raise _too_long()
        kept.append(part)
    return traced.join(kept)


def _too_long() -> OutputLimitError:
    return OutputLimitError(f"the output is above the limit of {MAX_OUTPUT_CHARS} characters")


def _check_product(item: Any, count: Any) -> None:
    sized = isinstance(item, str | list | tuple) and isinstance(count, int)
    if sized and len(item) * count > MAX_OUTPUT_CHARS:
        raise _too_long()


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter: any text it makes from value text is marked as a value as a whole, even if
    some of it still knows its origin, for the rest may have lost it."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        origin = traced.origin_within((args, kwargs))
        return traced.taint(str(result), origin) if origin and isinstance(result, str) else result

    return guarded


def _marked(result: Any, origin: int) -> Any:
    if origin and isinstance(result, str) and not isinstance(result, Traced):
        return traced.taint(str(result), origin)
    return result


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _join_filter(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [_attribute(item, attribute) for item in items]
    texts = [traced.taint(str(x), traced.origin_within(x)) if not isinstance(x, str) else x
             for x in items]  # fmt: skip
    mixed = [part for text in texts for part in (d, text)]
    return traced.join(mixed[1:])


def _attribute(item: Any, path: str | int) -> Any:
    for name in path.split(".") if isinstance(path, str) else [path]:
        item = item[int(name) if isinstance(name, str) and name.isdigit() else name]
    return item


def _replace_filter(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text = _text(s)
    followed = Traced(text, traced.runs_of(text))
    return followed.replace(_text(old), _text(new), -1 if count is None else count)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message))


__all__ = ["ChatEnvironment", "OutputLimitError", "RaisedByTemplate", "SecurityError"]

"""Go template tokens to a tree. Names of functions and variables are checked here, as Go does."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ftman.chat.gotext.lexer import Token, lex, template_error
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

_MAX_DEPTH = 100
_CONSTANTS = {"true": True, "false": False, "nil": None}
_BLOCK_WORDS = frozenset(["if", "range", "with"])


@dataclass
class Parsed:
    """A template and the templates it defines."""

    root: tuple[Node, ...] = ()
    defined: dict[str, tuple[Node, ...]] = field(default_factory=dict)


def parse(source: str, functions: Collection[str]) -> Parsed:
    """Parse a template.   Raises: UsageError with the line."""
    parser = _Parser(list(lex(source)), functions)
    parsed = Parsed(defined=parser.defined)
    parsed.root, stop = parser.body((), top=True)
    assert stop == ""
    return parsed


class _Parser:
    def __init__(self, tokens: list[Token], functions: Collection[str]):
        last = tokens[-1].line if tokens else 1
        self._tokens = [*tokens, Token("eof", "", last)]
        self._at = 0
        self._functions = functions
        self._variables = ["$"]
        self._ranges = 0
        self._depth = 0
        self.defined: dict[str, tuple[Node, ...]] = {}

    def body(self, stops: tuple[str, ...], *, top: bool = False) -> tuple[tuple[Node, ...], str]:
        """Nodes up to one of the words `stops` (or the end of the text), and that word."""
        nodes: list[Node] = []
        while True:
            token = self._next()
            if token.kind == "eof":
                if stops:
                    raise template_error("unexpected EOF: an {{end}} is missing", token.line)
                return tuple(nodes), ""
            if token.kind == "text":
                nodes.append(Text(token.value))
                continue
            word = self._peek()
            if word.kind == "word" and word.value in ("end", "else"):
                self._next()
                if word.value not in stops:
                    raise template_error(f"unexpected {{{{{word.value}}}}}", word.line)
                return tuple(nodes), word.value
            node = self._action(word, top)
            if node is not None:
                nodes.append(node)

    def _action(self, word: Token, top: bool) -> Node | None:
        name = word.value if word.kind == "word" else ""
        if name in _BLOCK_WORDS:
            self._next()
            return self._branch(name, word.line)
        if name in ("break", "continue"):
            self._next()
            self._close(name)
            if not self._ranges:
                raise template_error(f"{{{{{name}}}}} outside {{{{range}}}}", word.line)
            return Jump(name)
        if name == "define":
            if not top:
                raise template_error("unexpected {{define}}", word.line)
            self._define(word.line)
            return None
        if name == "template":
            self._next()
            return self._invoke(word.line)
        if name == "block":
            self._next()
            return self._block(word.line)
        return Action(self._pipe("command"))

    def _branch(self, kind: str, line: int) -> Branch:
        self._enter(line)
        known = len(self._variables)
        pipe = self._pipe(kind, loops=kind == "range")
        self._ranges += kind == "range"
        body, stop = self.body(("end", "else"))
        self._ranges -= kind == "range"
        orelse: tuple[Node, ...] = ()
        if stop == "else":
            orelse = self._else(kind)
        else:
            self._close("end")
        del self._variables[known:]
        self._depth -= 1
        return Branch(kind, pipe, body, orelse)

    def _else(self, kind: str) -> tuple[Node, ...]:
        word = self._peek()
        if word.kind == "word" and word.value == kind and kind != "range":
            self._next()
            return (self._branch(kind, word.line),)
        self._close("else")
        orelse, _ = self.body(("end",))
        self._close("end")
        return orelse

    def _define(self, line: int) -> None:
        self._next()
        name = self._name("define", line)
        self._close("define")
        self.defined[name] = self._apart()

    def _block(self, line: int) -> Invoke:
        name = self._name("block", line)
        pipe = self._pipe("block")
        self.defined[name] = self._apart()
        return Invoke(line, name, pipe)

    def _apart(self) -> tuple[Node, ...]:
        """The body of a template of its own: fresh variables, no enclosing range."""
        kept = self._variables, self._ranges
        self._variables, self._ranges = ["$"], 0
        self._enter(self._peek().line)
        nodes, _ = self.body(("end",))
        self._close("end")
        self._depth -= 1
        self._variables, self._ranges = kept
        return nodes

    def _invoke(self, line: int) -> Invoke:
        name = self._name("template", line)
        if self._peek().kind == "end":
            self._next()
            return Invoke(line, name, None)
        return Invoke(line, name, self._pipe("template"))

    def _name(self, where: str, line: int) -> str:
        token = self._next()
        if token.kind != "string":
            raise template_error(f"{where} needs a quoted name, not {token.value!r}", line)
        return str(token.value)

    def _pipe(self, where: str, *, loops: bool = False, closer: str = "end") -> Pipe:
        line = self._peek().line
        names, declares = self._declared(loops)
        commands: list[tuple[Operand, ...]] = []
        while True:
            command = self._command(where)
            if commands and isinstance(command[0], Literal | Dot):
                raise template_error(
                    f"non executable command in pipeline stage {len(commands) + 1}", line
                )
            commands.append(command)
            token = self._next()
            if token.kind == closer:
                break
            if token.kind != "|":
                raise template_error(f"unexpected {token.value!r} in {where}", token.line)
        if declares:
            self._variables += names
        return Pipe(line, tuple(commands), tuple(names), declares)

    def _declared(self, loops: bool) -> tuple[list[str], bool]:
        """`$a :=`, `$a =`, in a range also `$a, $b :=`."""
        start = self._at
        names: list[str] = []
        while self._peek().kind == "variable":
            token = self._next()
            names.append(str(token.value))
            mark = self._peek()
            if mark.kind in (":=", "="):
                self._next()
                if mark.kind == "=":
                    for name in names:
                        self._check_variable(name, token.line)
                return names, mark.kind == ":="
            if mark.kind != "," or not loops or len(names) > 1:
                break
            self._next()
        self._at = start
        return [], True

    def _command(self, where: str) -> tuple[Operand, ...]:
        items: list[Operand] = []
        while self._peek().kind not in ("end", "|", ")", "eof"):
            token = self._peek()
            if items and not token.spaced and token.kind != "(":
                raise template_error(f"unexpected {token.value!r} in operand", token.line)
            items.append(self._operand())
        if not items:
            raise template_error(f"missing value for {where}", self._peek().line)
        if isinstance(items[0], Literal) and items[0].value is None:
            raise template_error("nil is not a command", self._peek().line)
        return tuple(items)

    def _operand(self) -> Operand:
        token = self._next()
        item = self._term(token)
        names: list[str] = []
        while self._peek().kind == "field" and not self._peek().spaced:
            names.append(str(self._next().value))
        if not names:
            return item
        if isinstance(item, Field):
            return Field((*item.names, *names))
        if isinstance(item, Variable):
            return Variable(item.name, tuple(names))
        if isinstance(item, Dot):
            return Field(tuple(names))
        if isinstance(item, Pipe):
            return Chain(item, tuple(names))
        if isinstance(item, Function):
            return Chain(Pipe(token.line, ((item,),)), tuple(names))
        raise template_error(f"unexpected .{names[0]} after {token.value!r}", token.line)

    def _term(self, token: Token) -> Operand:
        if token.kind in ("string", "number"):
            return Literal(token.value)
        if token.kind == "field":
            return Field((str(token.value),))
        if token.kind == "variable":
            self._check_variable(str(token.value), token.line)
            return Variable(str(token.value))
        if token.kind == ".":
            return Dot()
        if token.kind == "(":
            self._enter(token.line)
            pipe = self._pipe("parenthesized pipeline", closer=")")
            self._depth -= 1
            return pipe
        if token.kind == "word":
            return self._word(token)
        raise template_error(f"unexpected {token.value!r} in command", token.line)

    def _word(self, token: Token) -> Operand:
        name = str(token.value)
        if name in _CONSTANTS:
            return Literal(_CONSTANTS[name])
        if name not in self._functions:
            raise template_error(f'function "{name}" not defined', token.line)
        return Function(name)

    def _check_variable(self, name: str, line: int) -> None:
        if name not in self._variables:
            raise template_error(f'undefined variable "{name}"', line)

    def _close(self, where: str) -> None:
        token = self._next()
        if token.kind != "end":
            raise template_error(f"unexpected {token.value!r} in {{{{{where}}}}}", token.line)

    def _enter(self, line: int) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise template_error(f"nested more than {_MAX_DEPTH} deep", line)

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

"""Constraint -> llguidance's grammar text, and the limits that every compilation runs under.

Imported by the engine when the first constraint comes, and by the trial process; no torch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits

from ftengine.errors import RequestError
from ftengine.protocol import Constraint

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # a name for type checkers only

TEXT_LIMIT_BYTES = 1_000_000
"""Of a schema, regular expression or grammar as it is sent."""
TRIAL_CPU_S = 5
"""Processor time a compilation may take, tried in a process of its own first."""
TRIAL_MEMORY_BYTES = 512 << 20
"""Memory the trial may take on top of what an idle one has."""
MAX_LEXER_STATES = 50_000
"""Of one reply's matcher, 1 to 2 kB each: what a hostile grammar may gather while it generates."""
_REASON_CHARACTERS = 500

WHITESPACE = r"\x20|\n[\x20\t]{0,20}"
"""Between JSON tokens, where the schema does not say otherwise. Unbounded white space is a way out
that small models take and never leave."""

_PLAIN_WORDS = {
    "NoExtensionBias": "no reply can fulfil it, or too many of its rules apply at one place",
    "NoExtension": "no reply can fulfil it",
}

CODE = "bad_constraint"


def limits() -> LLParserLimits:
    """llguidance's own limits: its defaults, with less memory and no grammar text in errors."""
    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


def grammar_of(constraint: Constraint) -> str:
    """The grammar in the form the matcher reads. Raises: RequestError "bad_constraint"."""
    size = len(constraint.text.encode("utf-8", "surrogatepass"))
    if size > TEXT_LIMIT_BYTES:
        raise refused(
            f"its text has {size} bytes and {TEXT_LIMIT_BYTES} are the limit; send a smaller one"
        )
    if constraint.kind == "json":
        return _of_schema({"type": "object"})
    if not constraint.text:
        raise refused(f"the text of a {constraint.kind} constraint is empty")
    if constraint.kind == "json_schema":
        return _of_schema(_parse_schema(constraint.text))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(constraint.text))
    return str(LLMatcher.grammar_from_lark(constraint.text))


def refused(reason: str) -> RequestError:
    """The one error of this package that is the client's fault."""
    return RequestError(f"the constraint is refused: {reason}", code=CODE)


def reason_of(error: str) -> str:
    """An error of llguidance as one line of bounded length."""
    line = " ".join(error.replace("<non-verbose/>", "").split())
    if line in _PLAIN_WORDS:
        return _PLAIN_WORDS[line]
    if len(line) > _REASON_CHARACTERS:
        line = line[:_REASON_CHARACTERS] + "..."
    return line or "it cannot be compiled"


def _parse_schema(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused(f"the schema is not JSON: {reason_of(str(error))}") from None


def _of_schema(schema: object) -> str:
    if schema is True:  # JSON Schema's way to say: anything
        schema = {}
    if not isinstance(schema, dict):
        raise refused("a JSON schema must be an object")
    # lenient: what it cannot express is not enforced, and is told as a warning
    options: JsonCompileOptions = {"whitespace_pattern": WHITESPACE, "lenient": True}
    try:
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=options))
    except ValueError as error:
        raise refused(reason_of(str(error))) from None

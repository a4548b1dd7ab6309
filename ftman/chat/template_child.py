"""The helper process that renders chat templates: `python -m ftman.chat.template_child`.

One JSON object per line on stdin, one per line on stdout, ends at the end of its input. It bounds
its own memory and processor time; the manager bounds the wall time (template.py). Standard library
and jinja2 only.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from ftman.chat import traced
from ftman.chat.sandbox import ChatEnvironment, OutputLimitError, RaisedByTemplate

if sys.platform != "win32":
    import resource

MEMORY_LIMIT_BYTES = 1 << 30
CPU_LIMIT_S = 10
_CONTENT_KEYS = frozenset(["content", "text"])
_THINKING_KEYS = frozenset(["thinking", "reasoning", "reasoning_content"])
_COMPILED_LIMIT = 8


def traced_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy template values with every string, and every mapping key, knowing its origin."""
    marked = {k: _traced(v, traced.OTHER_VALUE) for k, v in values.items() if k != "messages"}
    if "messages" in values:
        marked["messages"] = [_message(idx, item) for idx, item in enumerate(values["messages"])]
    return marked


def _message(idx: int, message: Any) -> Any:
    if not isinstance(message, Mapping):
        return _traced(message, traced.content_origin(idx))
    return {key: _field(idx, key, value) for key, value in message.items()}


def _field(idx: int, key: str, value: Any) -> Any:
    if key == "tool_calls" and isinstance(value, list):
        return [_traced(call, traced.call_origin(idx, at)) for at, call in enumerate(value)]
    if key in _THINKING_KEYS:
        return _traced(value, traced.thinking_origin(idx))
    of_content = key in _CONTENT_KEYS
    return _traced(value, traced.content_origin(idx) if of_content else traced.detail_origin(idx))


def _traced(value: Any, origin: int) -> Any:
    if isinstance(value, str):
        return traced.trace(value, origin)
    if isinstance(value, Mapping):
        return {traced.trace(k, origin): _traced(v, origin) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_traced(item, origin) for item in value]
    return value


class Renderer:
    """Compiled templates and the sandbox they run in."""

    def __init__(self) -> None:
        self._environment = ChatEnvironment()
        self._compiled: OrderedDict[str, Template] = OrderedDict()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Render one request; errors become data."""
        self._environment.now = datetime.fromisoformat(request["now"])
        try:
            text = self._render(request["source"], request["values"], request["trusted"])
        except RaisedByTemplate as error:
            return {"error": "raised", "message": error.message}
        except OutputLimitError as error:
            return {"error": "limit", "message": error.message}
        except TemplateSyntaxError as error:
            return {"error": "syntax", "message": f"line {error.lineno}: {error.message}"}
        except TemplateError as error:
            return {"error": "failed", "message": error.message or type(error).__name__}
        except MemoryError:
            return {"error": "limit", "message": "it needs more memory than a template may use"}
        except RecursionError:
            return {"error": "limit", "message": "it nests too deeply"}
        except Exception as error:  # process root: the template's own mistakes, of any kind
            return {"error": "failed", "message": f"{type(error).__name__}: {error}"}
        return {"text": text, "runs": traced.runs_of(text)}

    def _render(self, source: str, values: Mapping[str, Any], trusted: Mapping[str, Any]) -> str:
        template = self._compiled.pop(source, None) or self._environment.from_string(source)
        self._compiled[source] = template
        while len(self._compiled) > _COMPILED_LIMIT:
            self._compiled.popitem(last=False)
        context = template.new_context({**trusted, **traced_values(values)})
        return self._environment.concat(template.root_render_func(context))


def _limit_memory() -> None:
    if sys.platform == "win32":
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_LIMIT_BYTES if hard < 0 else min(hard, MEMORY_LIMIT_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _limit_next_request() -> None:
    """Give the next request its own processor time; past it the system ends this process."""
    if sys.platform == "win32":
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = used + CPU_LIMIT_S if hard < 0 else min(hard, used + CPU_LIMIT_S)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def main() -> None:
    """Serve until the input ends."""
    _limit_memory()
    renderer = Renderer()
    for line in sys.stdin.buffer:
        _limit_next_request()
        answer = renderer.answer(json.loads(line))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

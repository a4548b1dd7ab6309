"""Models and scripts of the native suites: one that talks, one that thinks and calls tools, ..."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.engine import FakeLauncher
from tests.fakes.script import FakeScript
from tests.ftman.gateway.serving import (
    GO_TEMPLATE,
    AccessRules,
    Manager,
    Tiny,
    ids_of,
    install,
    make_config,
)

if TYPE_CHECKING:
    from ftman.supervisor.policy_events import EngineSpec

THINKER_TEMPLATE = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "{{ if .Tools }}<|im_start|>system\n{{ range .Tools }}{{ . }}\n{{ end }}<|im_end|>\n{{ end }}"
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n"
    "{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}"
    "{{ range .ToolCalls }}<tool_call>\n"
    '{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}\n</tool_call>'
    "{{ end }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
)
INSERT_TEMPLATE = (
    "{{ if .Suffix }}<PRE>{{ .Prompt }}<SUF>{{ .Suffix }}<MID>{{ else }}{{ .Prompt }}{{ end }}"
)
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "at": {"b": 1, "a": [2]}}}'
    '\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
THOUGHTS = "<think>Hmm, weather.</think>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather now",
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
MODELS = (
    Tiny("tiny:latest", licenses=("MIT",), parameters={"stop": ["<|end|>"], "temperature": 0.6}),
    Tiny("go:latest", template=GO_TEMPLATE, system="Be brief.", seed=1),
    Tiny("thinker:latest", template=THINKER_TEMPLATE, seed=2, context=2048),
    Tiny("insert:latest", template=INSERT_TEMPLATE, seed=3),
    Tiny("vectors:latest", capabilities=("embedding",), seed=4),
    Tiny("caller:latest", template=THINKER_TEMPLATE, seed=5, context=2048),
    Tiny("broken:latest", seed=6),
)
SAYS = {
    "thinker:latest": THOUGHTS + "Sunny.",
    "caller:latest": THOUGHTS + CALLS,
}


class NativeManager(Manager):
    """A manager whose engines log what they are asked."""

    log: Path

    def asked(self) -> dict[str, Any]:
        """The last request that an engine was sent."""
        value: dict[str, Any] = json.loads(self.log.read_text().splitlines()[-1])
        found: dict[str, Any] = value["request"]
        return found

    def post(self, path: str, body: Any) -> Any:
        """POST JSON to a native route."""
        return self.http.post(f"/api/{path}", json=body)


@contextmanager
def native_manager(home: Path, **config: Any) -> Iterator[NativeManager]:
    """All the models above."""
    log = home / "asked.ndjson"

    def script(spec: EngineSpec) -> FakeScript:
        text = SAYS.get(spec.name, "Hello <b>")
        if spec.name == "broken:latest":
            return FakeScript(tokens=ids_of(text), stream_error="boom", hang_after=3)
        return FakeScript(tokens=ids_of(text), request_log=str(log))

    settings = make_config(home, **config)
    for tiny in MODELS:
        install(settings.paths, tiny)
    manager = NativeManager(settings, FakeLauncher(script), AccessRules())
    manager.log = log
    with manager:
        yield manager

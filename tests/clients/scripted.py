"""`ft serve` with models whose answers are written down here: what the suites of clients talk to.

The answer follows the words of a prompt that stand last in it, so that a client's second turn is
answered as its second. Real answers come from the other manager of the stand (stand.py).
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from ftman import log
from ftman.config import load_config
from ftman.gateway.app import serve
from tests.fakes.engine import FakeLauncher
from tests.fakes.script import FakeScript
from tests.ftman.gateway.ollama.models import THINKER_TEMPLATE
from tests.ftman.gateway.serving import Tiny, ids_of, install

PERSON = {"name": "Ada", "age": 36}


def call(name: str, arguments: dict[str, Any]) -> str:
    """What a model of the hermes format says to call a tool."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


ANSWERS = {
    "WEATHER": call("get_weather", {"city": "Paris"}),
    "18 C": "It is 18 C in Paris.",
    "BOTH": call("get_weather", {"city": "Paris"}) + "\n" + call("get_weather", {"city": "Rome"}),
    "PERSON": json.dumps(PERSON),
    "FINAL": call("final_result", PERSON),
    "NAMED": call("Person", PERSON),
    "WRONG": call("Person", {"name": "Ada", "age": "none"}),
    "THINK": "<think>Hmm, weather.</think>Sunny.",
    "FENCED": f"```json\n{json.dumps(PERSON)}\n```",
}
SCRIPT = FakeScript(
    tokens=ids_of("Hello world"),
    replies=tuple((ids_of(words), ids_of(text)) for words, text in ANSWERS.items()),
)
MODELS = (
    Tiny("caller:latest", template=THINKER_TEMPLATE, context=1 << 18, seed=11),
    Tiny("talker:latest", context=1 << 10, seed=12),
    Tiny("vectors:latest", capabilities=("embedding",), context=1 << 10, seed=13),
)


def named(names: list[str]) -> tuple[Tiny, ...]:
    """Models that can all the first one can, under other names."""
    return tuple(replace(MODELS[0], name=name, seed=20 + i) for i, name in enumerate(names))


def main() -> int:
    """Install the models, then serve; the store must be new."""
    log.configure()
    config = load_config()
    for tiny in MODELS:
        install(config.paths, tiny)
    return serve(config, launcher=FakeLauncher(SCRIPT))


if __name__ == "__main__":
    sys.exit(main())

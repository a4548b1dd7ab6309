"""The scene every agent plays: copy a number from one file to another, then a second turn.

Each step is recognised by a number of its own that only that step brings into the prompt (digits
are tokens of their own in the test tokenizer, wherever they stand). So the second file can only
hold what it must if the agent ran the first tool and sent back what it gave.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftman.config import Paths
from tests.fakes.script import FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of, install

MODEL = "agent"
CONTEXT_TOKENS = 1 << 18
FIRST, FOUND, WRITTEN, SECOND = "480315162342", "902841760553", "615520948837", "339174826051"
READ_FILE, WRITTEN_FILE = "number.txt", "copy.txt"
COPIED = f"copied {FOUND} {WRITTEN}\n"
FIRST_PROMPT = f"Task {FIRST}: copy the number in {READ_FILE} into {WRITTEN_FILE}."
SECOND_PROMPT = f"Task {SECOND}: what did you do?"
FIRST_ANSWER = "The number is copied."
SECOND_ANSWER = "I copied a number from one file to another."
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n# Tools\n<tools>"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n{% endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{%- if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class ToolUse:
    """A call by the name and the arguments of the agent's own tool."""

    name: str
    arguments: dict[str, Any]

    def said(self) -> str:
        """What a model of the hermes format says to make it."""
        value = json.dumps({"name": self.name, "arguments": self.arguments})
        return f"<tool_call>\n{value}\n</tool_call>"


def by_tools(read: ToolUse, write: ToolUse) -> FakeScript:
    """The scene for an agent with tools."""
    return _script(
        (FIRST, f"<think>\nI must look.\n</think>\n\nI read the file.\n{read.said()}"),
        (FOUND, f"<think>\nNow I write it.\n</think>\n\n{write.said()}"),
        (WRITTEN, f"<think>\nThat was all.\n</think>\n\n{FIRST_ANSWER}"),
        (SECOND, SECOND_ANSWER),
    )


def by_words() -> FakeScript:
    """The scene for an agent that reads new content of files out of the answer."""
    return _script((FIRST, f"{WRITTEN_FILE}\n```\n{COPIED}```\n"), (SECOND, SECOND_ANSWER))


def _script(*turns: tuple[str, str]) -> FakeScript:
    replies = tuple((ids_of(words), ids_of(text)) for words, text in turns)
    return FakeScript(tokens=ids_of("Copying a number"), replies=replies)


def prepare(home: Path, work: Path) -> None:
    """Install the model and lay out the folder that the agent works in."""
    model = Tiny(f"{MODEL}:latest", jinja=TEMPLATE, context=CONTEXT_TOKENS)
    install(Paths(home, home / "models"), model)
    work.mkdir(parents=True)
    (work / READ_FILE).write_text(f"{FOUND}\n")

"""Where the managers are and what they were told to answer (tests/clients/scripted.py).

Imported by every suite in that client's own interpreter, so: the standard library and pytest only.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

URL = os.environ.get("CLIENTS_URL", "")
REAL_URL = os.environ.get("CLIENTS_REAL_URL", "")
MODEL = "caller"
TALKER = "talker"
VECTORS = "vectors"
REAL_MODEL = "real"
REAL_TOOLS = "real-tools"
SAYS = "Hello world"
AFTER_TOOL = "It is 18 C in Paris."
THOUGHT = "Hmm, weather."
AFTER_THOUGHT = "Sunny."
FLAT = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
needs_real = pytest.mark.skipif(not REAL_URL, reason="no real model: make clients MODEL=...")


def weather(city: str) -> str:
    """What the tool of the suites answers."""
    assert city == "Paris"
    return "18 C"

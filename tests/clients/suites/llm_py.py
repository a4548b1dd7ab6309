"""llm with llm-ollama: the command as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.suites.stage import (
    AFTER_TOOL,
    MODEL,
    REAL_MODEL,
    REAL_URL,
    SAYS,
    TALKER,
    URL,
    VECTORS,
    needs_real,
)

TOOLS = "def get_weather(city: str) -> str:\n    'The weather now.'\n    return '18 C'\n"
EXTRA = (
    "- {model_id: local, model_name: talker, api_base: '%s/v1', supports_schema: true}\n"
    "- {model_id: local-caller, model_name: caller, api_base: '%s/v1', supports_tools: true}\n"
    "- {model_id: local-tools, model_name: talker, api_base: '%s/v1', supports_tools: true}\n"
)


def llm(folder: Path, *words: str, url: str = URL, code: int = 0) -> str:
    """Run the command; returns what it printed."""
    (folder / "extra-openai-models.yaml").write_text(EXTRA.replace("%s", url))
    env = os.environ | {"LLM_USER_PATH": str(folder), "OLLAMA_HOST": url}
    done = subprocess.run(
        [sys.executable, "-m", "llm", *words],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return (done.stdout + (done.stderr if code else "")).strip()


def test_it_lists_our_models(tmp_path: Path) -> None:
    assert "Ollama: ollama/caller:latest" in llm(tmp_path, "models")


@pytest.mark.parametrize("name", [f"ollama/{TALKER}", "local"])
def test_chat_and_stream(tmp_path: Path, name: str) -> None:
    assert llm(tmp_path, "-m", name, "Hi") == SAYS
    assert llm(tmp_path, "-m", name, "--no-stream", "Hi") == SAYS
    assert llm(tmp_path, "-c", "-m", name, "again") == SAYS


@pytest.mark.parametrize("name", [f"ollama/{MODEL}", "local-caller"])
def test_a_tool_round_trip(tmp_path: Path, name: str) -> None:
    said = llm(tmp_path, "-m", name, "--functions", TOOLS, "the WEATHER")
    assert said.endswith(AFTER_TOOL)


def test_structured_output(tmp_path: Path) -> None:
    said = llm(
        tmp_path, "-m", f"ollama/{MODEL}", "--no-stream", "--schema", "name, age int", "PERSON"
    )
    assert json.loads(said) == {"name": "Ada", "age": 36}


def test_embeddings(tmp_path: Path) -> None:
    assert len(json.loads(llm(tmp_path, "embed", "-m", f"ollama/{VECTORS}", "-c", "a"))) == 8


def test_errors(tmp_path: Path) -> None:
    assert "does not support tools" in llm(
        tmp_path, "-m", "local-tools", "--functions", TOOLS, "Hi", code=1
    )


@needs_real
def test_the_real_model_talks(tmp_path: Path) -> None:
    options = ("-o", "temperature", "0", "-o", "num_predict", "24")
    question = "What is the capital of France?"
    assert "Paris" in llm(tmp_path, "-m", f"ollama/{REAL_MODEL}", *options, question, url=REAL_URL)

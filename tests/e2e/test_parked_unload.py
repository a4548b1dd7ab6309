"""A model that is unloaded because nobody uses it goes on from its files when loaded again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.processes import REAL, ManagerProcess, manager_process
from tests.fakes.tiny_models import build_tiny

QUESTION = "Which of the lights in this house are on, and since when? " * 3
WITHIN_S = 20.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerProcess]:
    """A real manager that unloads what is idle and parks conversations on disk."""
    settings = {"FT_PARK_DISK": str(tmp_path / "parked"), "OLLAMA_KEEP_ALIVE": "50ms"}
    with manager_process(tmp_path / "home", REAL, **settings) as running:
        folder = build_tiny("llama", tmp_path / "tiny-llama")
        reply = httpx.post(
            f"{running.url}/api/pull",
            json={"model": folder.as_uri(), "stream": False},
            timeout=60,
            trust_env=False,
        )
        assert reply.json()["status"] == "success"
        yield running


def say(http: httpx.Client, messages: list[Any]) -> tuple[dict[str, Any], int, int]:
    """(the reply, tokens of the prompt, how many of them were not computed)."""
    (entry,) = http.get("/api/tags").json()["models"]
    body = {"model": entry["name"], "messages": messages, "temperature": 0, "max_tokens": 12}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return reply.json()["choices"][0]["message"], usage["prompt_tokens"], cached


def wait_until_unloaded(http: httpx.Client) -> None:
    deadline = time.monotonic() + WITHIN_S
    while http.get("/api/ps").json()["models"]:
        assert time.monotonic() < deadline, "the model stays loaded"
        time.sleep(0.02)


@pytest.mark.slow
def test_an_idle_model_is_unloaded_and_goes_on_where_it_was(
    manager: ManagerProcess, tmp_path: Path
) -> None:
    with httpx.Client(base_url=manager.url, timeout=60, trust_env=False) as http:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        said, _, cached = say(http, messages)
        assert cached == 0
        wait_until_unloaded(http)
        parked = list((tmp_path / "parked").rglob("*.park"))
        assert parked
        messages += [said, {"role": "user", "content": "And now?"}]
        again, num_prompt, cached = say(http, messages)
        assert len(QUESTION) // 2 < cached < num_prompt
        wait_until_unloaded(http)
        for path in (tmp_path / "parked").rglob("*.park"):
            data = bytearray(path.read_bytes())
            data[len(data) * 3 // 4] ^= 1  # in one of its pages
            path.write_bytes(bytes(data))
        anew, _, cached = say(http, messages)
        assert anew == again
        assert cached == 0
        logs = "".join(path.read_text() for path in (tmp_path / "home" / "logs").glob("*.log"))
        assert "is of no use" in logs

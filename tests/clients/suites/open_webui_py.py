"""Open WebUI: its own back end lists, talks and pulls; both of our managers are its Ollamas."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
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

START_S = 150
PULLED = os.environ.get("CLIENTS_PULL", "")
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
}


def environment(folder: Path) -> dict[str, str]:
    """Its documented settings: our addresses, nothing that needs the network or a model."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "DATA_DIR": str(folder),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "x",
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "ENABLE_VERSION_UPDATE_CHECK": "false",
        "ANONYMIZED_TELEMETRY": "false",
        "RAG_EMBEDDING_ENGINE": "ollama",
        "RAG_EMBEDDING_MODEL": VECTORS,
        "RAG_OLLAMA_BASE_URL": URL,
        "ENABLE_OLLAMA_API": "true",
        "OLLAMA_BASE_URLS": ";".join(filter(None, (URL, REAL_URL))),
        "ENABLE_OPENAI_API": "true",
        "OPENAI_API_BASE_URL": f"{URL}/v1",
        "OPENAI_API_KEY": "none",
    }


@pytest.fixture(scope="module")
def webui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Its server as a process, and a client that has signed in."""
    folder = tmp_path_factory.mktemp("webui")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = Path(sys.executable).parent / "open-webui"
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    base = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=base, trust_env=False, timeout=120) as http:
            wait_for(http, process, folder / "log")
            nobody = {"email": "", "password": ""}
            signed_in = http.post("/api/v1/auths/signin", json=nobody)
            http.headers["Authorization"] = f"Bearer {signed_in.json()['token']}"
            yield http
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(http: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if http.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


def ask(webui: httpx.Client, model: str, words: str, **options: Any) -> httpx.Response:
    """One question as its page asks it."""
    body = {"model": model, "messages": [{"role": "user", "content": words}], **options}
    reply = webui.post("/api/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply


def streamed(reply: httpx.Response) -> str:
    """The text of a stream of events."""
    data = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(item) for item in data if item != "[DONE]"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_it_lists_our_models(webui: httpx.Client) -> None:
    found = webui.get("/api/models").json()["data"]
    assert {(model["id"], model["owned_by"]) for model in found} >= {
        (f"{MODEL}:latest", "ollama"),
        (f"{TALKER}:latest", "ollama"),
    }
    assert webui.get("/ollama/api/version").json()["version"]
    assert webui.get("/ollama/api/ps").status_code == 200


def test_chat_whole_and_streamed(webui: httpx.Client) -> None:
    webui.get("/api/models")
    whole = ask(webui, f"{TALKER}:latest", "Hi", stream=False)
    assert whole.json()["choices"][0]["message"]["content"] == SAYS
    assert streamed(ask(webui, f"{TALKER}:latest", "Hi", stream=True)) == SAYS


def test_its_pass_through_of_our_openai_dialect(webui: httpx.Client) -> None:
    assert TALKER in str(webui.get("/openai/models").json())
    body = {"model": f"{TALKER}:latest", "messages": [{"role": "user", "content": "Hi"}]}
    reply = webui.post("/openai/chat/completions", json=body)
    assert reply.json()["choices"][0]["message"]["content"] == SAYS


def test_tools_that_its_caller_brings(webui: httpx.Client) -> None:
    webui.get("/api/models")
    model = f"{MODEL}:latest"
    reply = ask(webui, model, "the WEATHER", stream=False, tools=[TOOL])
    message = reply.json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "18 C"}
    asked = {"role": "user", "content": "the WEATHER"}
    body = {"model": model, "messages": [asked, message, result], "tools": [TOOL]}
    last = webui.post("/api/chat/completions", json=body | {"stream": False})
    assert last.json()["choices"][0]["message"]["content"] == AFTER_TOOL


def test_an_unknown_model_is_refused(webui: httpx.Client) -> None:
    body = {"model": "nope", "messages": [{"role": "user", "content": "Hi"}]}
    assert webui.post("/ollama/api/chat", json=body).status_code >= 400


@needs_real
def test_it_pulls_and_the_real_model_talks(webui: httpx.Client) -> None:
    pulled = webui.post("/ollama/api/pull/1", json={"model": PULLED})
    assert pulled.status_code == 200, pulled.text
    lines = [json.loads(line) for line in pulled.text.splitlines()]
    assert lines[-1] == {"status": "success"}
    webui.get("/api/models?refresh=true")
    model = f"{REAL_MODEL}:latest"
    reply = ask(webui, model, "What is the capital of France?", stream=True, max_tokens=24)
    assert "Paris" in streamed(reply)

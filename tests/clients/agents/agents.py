"""The agents that are tried: how each is installed and run without a person; its tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.agents.scene import (
    CONTEXT_TOKENS,
    COPIED,
    MODEL,
    READ_FILE,
    WRITTEN_FILE,
    ToolUse,
)

CLINE = "cline@3.0.65"
PI = "@earendil-works/pi-coding-agent@1.6.0"


@dataclass(frozen=True)
class Agent:
    """One agent in one way of talking to us.

    first, second: words after the program, "{prompt}" for the prompt; the second continues what the
    first began, if the agent can do that without a person. launched: started by `ft launch`, else
    directly; environ and settings (files below its home) may hold "{url}". calls: its request for
    an answer.
    """

    name: str
    program: str
    package: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    read: Callable[[Path], ToolUse] | None = None
    write: Callable[[Path], ToolUse] | None = None
    launched: bool = True
    python: bool = False
    continues: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    calls: str = "POST /v1/chat/completions"

    @property
    def tools(self) -> bool:
        """Whether it offers tools; else it reads edits out of the text."""
        return self.read is not None


def _tools(
    read: tuple[str, str], write: tuple[str, str, str]
) -> tuple[Callable[[Path], ToolUse], Callable[[Path], ToolUse]]:
    """Tools that take one path to read, and a path and a text to write."""

    def reads(work: Path) -> ToolUse:
        return ToolUse(read[0], {read[1]: str(work / READ_FILE)})

    def writes(work: Path) -> ToolUse:
        return ToolUse(write[0], {write[1]: str(work / WRITTEN_FILE), write[2]: COPIED})

    return reads, writes


def _pi(api: str, base: str, calls: str) -> Agent:
    """pi speaks all three protocols; these two are not what `ft launch` writes."""
    reads, writes = _tools(("read", "path"), ("write", "path", "content"))
    model = {
        "id": MODEL, "name": MODEL, "reasoning": True, "input": ["text"],
        "contextWindow": CONTEXT_TOKENS, "maxTokens": 8192,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }  # fmt: skip
    provider = {"baseUrl": base, "api": api, "apiKey": "local", "models": [model]}
    words = ("--provider", "own", "--model", MODEL, "-p", "{prompt}")
    return Agent(
        f"pi-{api.split('-')[0]}-{api.split('-')[1]}",
        "pi",
        PI,
        words,
        ("--continue", *words),
        reads,
        writes,
        launched=False,
        environ={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"},
        settings={".pi/agent/models.json": json.dumps({"providers": {"own": provider}})},
        calls=calls,
    )


def _cline_native() -> Agent:
    """Cline with Ollama's own routes, which it takes its models from first."""
    settings = {"provider": "ollama", "model": MODEL, "baseUrl": "{url}"}
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    value = {"version": 1, "providers": {"ollama": entry}}
    words = ("--provider", "ollama", "--model", MODEL, "--json", "{prompt}")
    return Agent(
        "cline-ollama",
        "cline",
        CLINE,
        words,
        words,
        _cline_read,
        _cline_write,
        launched=False,
        continues=False,
        environ={"CLINE_TELEMETRY_DISABLED": "1"},
        settings={".cline/data/settings/providers.json": json.dumps(value)},
        calls="POST /api/chat",
    )


def _cline_read(work: Path) -> ToolUse:
    return ToolUse("read_files", {"files": [{"path": str(work / READ_FILE)}]})


def _cline_write(work: Path) -> ToolUse:
    return ToolUse("editor", {"path": str(work / WRITTEN_FILE), "new_text": COPIED})


def _aider(
    name: str, model: str, environ: dict[str, str], calls: str = "POST /v1/chat/completions"
) -> Agent:
    """aider offers no tools: it reads the new content of a file out of the answer."""
    words = (
        "--model", model, "--no-check-update", "--no-show-model-warnings", "--analytics-disable",
        "--yes-always", "--no-auto-commits", "--no-gitignore", "--map-tokens", "0", "--no-pretty",
        "--edit-format", "whole", "--message", "{prompt}", READ_FILE,
    )  # fmt: skip
    return Agent(
        name,
        "aider",
        "aider-chat==0.86.2",
        words,
        ("--restore-chat-history", *words),
        launched=False,
        python=True,
        environ=environ,
        calls=calls,
    )


AGENTS: tuple[Agent, ...] = (
    Agent(
        "pi",
        "pi",
        PI,
        ("-p", "{prompt}"),
        ("--continue", "-p", "{prompt}"),
        *_tools(("read", "path"), ("write", "path", "content")),
        environ={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"},
    ),
    Agent(
        "claude",
        "claude",
        "@anthropic-ai/claude-code@2.1.332",
        ("-p", "{prompt}", "--allowedTools", "Read,Write", "--output-format", "json"),
        ("--continue", "-p", "{prompt}", "--output-format", "json"),
        *_tools(("Read", "file_path"), ("Write", "file_path", "content")),
        calls="POST /v1/messages?beta=true",
    ),
    Agent(
        "codex",
        "codex",
        "@openai/codex@0.171.0",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json",
         "{prompt}"),
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json",
         "resume", "--last", "{prompt}"),
        lambda work: ToolUse("exec_command", {"cmd": f"cat {READ_FILE}"}),
        lambda work: ToolUse("exec_command", {"cmd": f"printf '{COPIED}' > {WRITTEN_FILE}"}),
        calls="POST /v1/responses",
    ),
    Agent(
        "opencode",
        "opencode",
        "opencode-ai@1.18.33",
        ("run", "--auto", "--format", "json", "{prompt}"),
        ("run", "--auto", "--continue", "--format", "json", "{prompt}"),
        *_tools(("read", "filePath"), ("write", "filePath", "content")),
        environ={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Agent(
        "qwen",
        "qwen",
        "@qwen-code/qwen-code@0.24.4",
        ("--yolo", "-p", "{prompt}"),
        ("--yolo", "--continue", "-p", "{prompt}"),
        *_tools(("read_file", "file_path"), ("write_file", "file_path", "content")),
    ),
    Agent(
        "cline",
        "cline",
        CLINE,
        ("--json", "{prompt}"),
        ("--json", "{prompt}"),
        _cline_read,
        _cline_write,
        continues=False,
        environ={"CLINE_TELEMETRY_DISABLED": "1"},
    ),
    _pi("anthropic-messages", "{url}", "POST /v1/messages?beta=true"),
    _pi("openai-responses", "{url}/v1", "POST /v1/responses"),
    _cline_native(),
    _aider("aider", "openai/agent", {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "local"}),
    _aider("aider-ollama", "ollama_chat/agent", {"OLLAMA_API_BASE": "{url}"}, "POST /api/chat"),
)  # fmt: skip

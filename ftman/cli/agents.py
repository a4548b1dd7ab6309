"""What each coding agent is told about our manager: its settings files, its flags, its environment.

Everything goes into entries or files of our own name, so that what a person configured before stays
in use. Writing is agent_files.py's business, running is commands/launch.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROVIDER = "ft"
KEY_NAME = "FT_AGENT_KEY"
KEY = "local"  # agents want one; a manager without keys accepts any
MAX_OUTPUT_TOKENS = 32768
Environment = Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """The manager and the model that an agent shall use. context_tokens is what is enforced."""

    url: str
    model: str
    context_tokens: int
    thinks: bool = False
    key: str = KEY

    @property
    def output_tokens(self) -> int:
        """What an agent may ask for in one answer: a quarter of the context at most."""
        return max(1, min(MAX_OUTPUT_TOKENS, self.context_tokens // 4))


@dataclass(frozen=True)
class JsonEntry:
    """Values to lay into a JSON settings file. `defaults` give way to what is there already."""

    path: Path
    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WholeFile:
    """A settings file that is ours alone."""

    path: Path
    text: str


@dataclass(frozen=True)
class Plan:
    """How to start an agent: what to write first, the words of its command, its environment."""

    files: tuple[JsonEntry | WholeFile, ...]
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Agent:
    """One agent. `plan` gets the target, the home folder and the environment."""

    name: str
    title: str
    install: str
    plan: Callable[[Target, Path, Environment], Plan]


def _claude(target: Target, home: Path, environ: Environment) -> Plan:
    folder = Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    path = folder / "ft-settings.json"
    model = target.model
    settings = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_MODEL": model,
        **{f"ANTHROPIC_DEFAULT_{size}_MODEL": model for size in ("OPUS", "SONNET", "HAIKU")},
        "CLAUDE_CODE_SUBAGENT_MODEL": model,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output_tokens),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context_tokens),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(target.context_tokens),
    }
    argv = ("claude", "--settings", str(path), "--model", model)
    # Its settings come too late for what it decides while starting, so they are given twice.
    return Plan((JsonEntry(path, {"env": settings}),), argv, settings)


def _codex(target: Target, home: Path, environ: Environment) -> Plan:
    folder = Path(environ.get("CODEX_HOME") or home / ".codex")
    lines = [
        f"# Written by ft; used by: codex --profile {PROVIDER}",
        f"model = {_toml(target.model)}",
        f"model_provider = {_toml(PROVIDER)}",
        f"model_context_window = {target.context_tokens}",
        "",
        f"[model_providers.{PROVIDER}]",
        f"name = {_toml(PROVIDER)}",
        f"base_url = {_toml(target.url + '/v1')}",
        'wire_api = "responses"',
    ]
    environ_of_it: dict[str, str] = {}
    if target.key != KEY:  # it reads keys from its environment, and sends none otherwise
        lines.append(f"env_key = {_toml(KEY_NAME)}")
        environ_of_it = {KEY_NAME: target.key}
    own = WholeFile(folder / f"{PROVIDER}.config.toml", "\n".join(lines) + "\n")
    return Plan((own,), ("codex", "--profile", PROVIDER), environ_of_it)


def _opencode(target: Target, home: Path, environ: Environment) -> Plan:
    folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    limit = {"context": target.context_tokens, "output": target.output_tokens}
    model = {
        "name": target.model,
        "tool_call": True,
        "reasoning": target.thinks,
        "limit": limit,
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.key},
        "models": {target.model: model},
    }
    values = {"$schema": "https://opencode.ai/config.json", "provider": {PROVIDER: provider}}
    name = f"{PROVIDER}/{target.model}"
    return Plan((JsonEntry(folder / "opencode.json", values),), ("opencode", "--model", name))


def _pi(target: Target, home: Path, environ: Environment) -> Plan:
    folder = Path(environ.get("PI_CODING_AGENT_DIR") or home / ".pi" / "agent")
    model = {
        "id": target.model,
        "name": target.model,
        "reasoning": target.thinks,
        "input": ["text"],
        "contextWindow": target.context_tokens,
        "maxTokens": target.output_tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": f"{target.url}/v1",
        "api": "openai-completions",
        "apiKey": target.key,
        "models": [model],
    }
    values = {"providers": {PROVIDER: provider}}
    argv = ("pi", "--provider", PROVIDER, "--model", target.model)
    return Plan((JsonEntry(folder / "models.json", values),), argv)


def _qwen(target: Target, home: Path, environ: Environment) -> Plan:
    folder = Path(environ.get("QWEN_HOME") or home / ".qwen")
    model = {
        "id": target.model,
        "name": f"{target.model} ({PROVIDER})",
        "baseUrl": f"{target.url}/v1",
        "envKey": KEY_NAME,
        "generationConfig": {"contextWindowSize": target.context_tokens},
    }
    values = {"modelProviders": {"openai": [model]}, "env": {KEY_NAME: target.key}}
    argv = ("qwen", "--auth-type", "openai", "--model", target.model)
    return Plan((JsonEntry(folder / "settings.json", values),), argv)


def _cline(target: Target, home: Path, environ: Environment) -> Plan:
    # Headless, Cline knows its own providers only: the one for any OpenAI-like server it is.
    provider = "openai-compatible"
    data = environ.get("CLINE_DATA_DIR")
    folder = Path(data or home / ".cline" / "data") / "settings"
    model = {
        "id": target.model,
        "name": target.model,
        "contextWindow": target.context_tokens,
        "maxTokens": target.output_tokens,
        "supportsReasoning": target.thinks,
        "capabilities": ["tools"],
    }
    settings = {
        "provider": provider,
        "apiKey": target.key,
        "model": target.model,
        "baseUrl": f"{target.url}/v1",
    }
    models = {"version": 1, "providers": {provider: {"models": {target.model: model}}}}
    chosen = {"version": 1, "providers": {provider: {"settings": settings}}}
    # Cline drops the whole file when an entry has no time; later it writes its own.
    stamp = {"updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    written = (
        JsonEntry(folder / "models.json", models),
        JsonEntry(folder / "providers.json", chosen, {"providers": {provider: stamp}}),
    )
    return Plan(written, ("cline", "--provider", provider, "--model", target.model))


AGENTS: tuple[Agent, ...] = (
    Agent("claude", "Claude Code", "npm install -g @anthropic-ai/claude-code", _claude),
    Agent("codex", "Codex", "npm install -g @openai/codex", _codex),
    Agent("opencode", "OpenCode", "npm install -g opencode-ai", _opencode),
    Agent("pi", "pi", "npm install -g @earendil-works/pi-coding-agent", _pi),
    Agent("qwen", "Qwen Code", "npm install -g @qwen-code/qwen-code", _qwen),
    Agent("cline", "Cline", "npm install -g cline", _cline),
)


def agent_named(name: str) -> Agent | None:
    """The agent of that name."""
    return next((agent for agent in AGENTS if agent.name == name), None)


def _toml(text: str) -> str:
    # A TOML basic string; names and URLs hold no control characters.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

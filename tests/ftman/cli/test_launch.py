"""`ft launch`: what is written where, what is kept, what is said; agents are stand-ins."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from ftman.cli.agents import AGENTS, Target
from ftman.keys import create_key
from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import SHOWN, Gateway, Reply

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONTEXT_TOKENS = 65536
FILES = {
    "claude": [".claude/ft-settings.json"],
    "codex": [".codex/ft.config.toml"],
    "opencode": [".config/opencode/opencode.json"],
    "pi": [".pi/agent/models.json"],
    "qwen": [".qwen/settings.json"],
    "cline": [".cline/data/settings/models.json", ".cline/data/settings/providers.json"],
}
OWN_FOLDERS = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "PI_CODING_AGENT_DIR",
               "QWEN_HOME", "CLINE_DATA_DIR")  # fmt: skip


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home, with stand-ins of the agents in PATH that write down how they were started."""
    folder = tmp_path / "home"
    programs = tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for agent in AGENTS:
        program = programs / agent.name
        program.write_text(
            "#!/bin/sh\nprintf '%s\\n' \"$@\" > started\nexport -p > environment\nexit 7\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for name in OWN_FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def models(gateway: Gateway) -> Gateway:
    """A manager with one model that calls tools and thinks."""
    able = {"capabilities": ["completion", "tools", "thinking"]}
    gateway.on("POST", "/api/show", SHOWN | able)
    gateway.on("GET", "/v1/models/m", {"id": "m", "max_model_len": CONTEXT_TOKENS})
    gateway.on("GET", "/api/tags", {"models": [{"name": "m"}]})
    return gateway


def started(tmp_path: Path) -> tuple[list[str], str]:
    """Words of the stand-in, and its environment as the shell prints it."""
    return (tmp_path / "started").read_text().splitlines(), (tmp_path / "environment").read_text()


def written(home: Path, name: str) -> Any:
    """A settings file."""
    text = (home / name).read_text()
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


@pytest.mark.parametrize("agent", FILES)
def test_settings_are_written_and_the_agent_runs(
    agent: str, ft: Cli, models: Gateway, home: Path, tmp_path: Path
) -> None:
    done = ft("launch", agent, "--", "-p", "hi", "--think")
    assert done.code == 7
    words, environ = started(tmp_path)
    assert words[-3:] == ["-p", "hi", "--think"]
    found = [str(p.relative_to(home)) for p in sorted(home.rglob("*")) if p.is_file()]
    assert found == FILES[agent]
    assert all(f"wrote {home / name}" in done.err for name in found)
    texts = "".join((home / name).read_text() for name in found)
    assert models.url in texts
    assert str(CONTEXT_TOKENS) in texts
    assert agent != "claude" or f"ANTHROPIC_BASE_URL='{models.url}'" in environ
    again = ft("launch", agent)
    assert again.code == 7
    assert again.err == ""
    assert [str(p.relative_to(home)) for p in sorted(home.rglob("*")) if p.is_file()] == found


@pytest.mark.parametrize("agent", FILES)
def test_a_dry_run_says_all_and_changes_nothing(
    agent: str, ft: Cli, models: Gateway, home: Path, tmp_path: Path
) -> None:
    done = ft("launch", agent, "--model", "m", "--dry-run")
    assert done.code == 0
    assert all(f"would create {home / name}:" in done.out for name in FILES[agent])
    assert agent in done.out.splitlines()[-1]
    assert list(home.iterdir()) == []
    assert not (tmp_path / "started").exists()
    told = json.loads(ft("launch", agent, "--dry-run", "--json").out)
    assert list(told["would_write"]) == [str(home / name) for name in FILES[agent]]
    assert (told["model"], told["context_tokens"]) == ("m", CONTEXT_TOKENS)
    assert list(home.iterdir()) == []


def test_config_only_starts_nothing_and_needs_no_program(
    ft: Cli, models: Gateway, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    done = ft("launch", "codex", "--config-only")
    assert (done.code, done.out) == (0, "codex --profile ft\n")
    value = written(home, FILES["codex"][0])
    provider = {"name": "ft", "base_url": f"{models.url}/v1", "wire_api": "responses"}
    assert value == {
        "model": "m",
        "model_provider": "ft",
        "model_context_window": CONTEXT_TOKENS,
        "model_providers": {"ft": provider},
    }
    assert not (tmp_path / "started").exists()
    refused = ft("launch", "codex", "--config-only", "--", "x")
    assert refused.code == 2
    missing = ft("launch", "codex")
    assert missing.code == 5
    assert "npm install -g @openai/codex" in missing.err


def test_what_was_there_stays_and_a_copy_is_kept(ft: Cli, models: Gateway, home: Path) -> None:
    path = home / FILES["qwen"][0]
    path.parent.mkdir()
    theirs = {"id": "m", "envKey": "THEIRS", "baseUrl": "https://example.test/v1"}
    old = {"ui": {"theme": "x"}, "modelProviders": {"openai": [theirs], "gemini": []}, "env": {}}
    path.write_text(json.dumps(old))
    done = ft("launch", "qwen", "--config-only")
    assert done.code == 0
    value = written(home, FILES["qwen"][0])
    assert value["ui"] == {"theme": "x"}
    assert value["modelProviders"]["gemini"] == []
    assert value["modelProviders"]["openai"][0] == theirs
    assert value["modelProviders"]["openai"][1]["baseUrl"] == f"{models.url}/v1"
    (kept,) = path.parent.glob("settings.json.before-ft-*")
    assert json.loads(kept.read_text()) == old
    assert str(kept) in done.err
    ft("launch", "qwen", "--config-only")
    assert len(list(path.parent.glob("*.before-ft-*"))) == 1
    assert len(written(home, FILES["qwen"][0])["modelProviders"]["openai"]) == 2


def test_a_time_that_cline_wrote_is_left_alone(ft: Cli, models: Gateway, home: Path) -> None:
    ft("launch", "cline", "--config-only")
    path = home / FILES["cline"][1]
    value = json.loads(path.read_text())
    entry = value["providers"]["openai-compatible"]
    assert entry["updatedAt"].startswith("2026-")
    entry["updatedAt"] = "2031-01-01T00:00:00.000Z"
    path.write_text(json.dumps(value | {"lastUsedProvider": "cline"}))
    before = path.read_bytes()
    ft("launch", "cline", "--config-only")
    assert path.read_bytes() == before


def test_restore_brings_back_what_was_there_and_loses_nothing(
    ft: Cli, models: Gateway, home: Path
) -> None:
    path = home / ".pi" / "agent" / "models.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"mine": 1}')
    assert "nothing to restore" in ft("launch", "pi", "--restore").err
    assert ft("launch", "pi", "--config").code == 0
    assert "ft" in json.loads(path.read_text())["providers"]
    done = ft("launch", "pi", "--restore")
    assert done.code == 0
    assert path.read_text() == '{"mine": 1}'
    assert len(list(path.parent.glob("models.json.after-ft-*"))) == 1
    assert "nothing to restore" in ft("launch", "pi", "--restore").err


def test_a_manager_with_keys_needs_one_for_the_agent(
    ft: Cli, models: Gateway, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_key(tmp_path / "ft-home" / "keys.json", "me", "manage")
    refused = ft("launch", "codex", "--config")
    assert refused.code == 2
    assert "ft key create" in refused.err
    monkeypatch.setenv("FT_API_KEY", "ft-mine")
    done = ft("launch", "codex", "--config", "--json")
    assert json.loads(done.out)["environ"] == {"FT_AGENT_KEY": "ft-mine"}
    own = written(home, ".codex/ft.config.toml")
    assert own["model_providers"]["ft"]["env_key"] == "FT_AGENT_KEY"
    assert "ft-mine" not in (home / ".codex" / "ft.config.toml").read_text()
    ft("launch", "pi", "--config")
    assert written(home, ".pi/agent/models.json")["providers"]["ft"]["apiKey"] == "ft-mine"


def test_restore_takes_files_away_that_were_not_there(ft: Cli, models: Gateway, home: Path) -> None:
    path = home / ".codex" / "ft.config.toml"
    assert ft("launch", "codex", "--config").code == 0
    assert path.exists()
    assert json.loads(ft("launch", "codex", "--restore", "--json").out)["restored"] == [str(path)]
    assert not path.exists()


def test_settings_with_comments_are_not_touched(ft: Cli, models: Gateway, home: Path) -> None:
    path = home / FILES["opencode"][0]
    path.parent.mkdir(parents=True)
    path.write_text('{\n  // mine\n  "theme": "x"\n}\n')
    before = path.read_bytes()
    done = ft("launch", "opencode", "--config-only")
    assert done.code != 0
    assert f"{path} is not a plain JSON object" in done.err
    assert '"provider"' in done.err
    assert path.read_bytes() == before


def test_a_link_to_settings_kept_elsewhere_stays_a_link(
    ft: Cli, models: Gateway, home: Path, tmp_path: Path
) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    link = home / FILES["pi"][0]
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert ft("launch", "pi", "--config-only").code == 0
    assert link.is_symlink()
    assert "ft" in json.loads(real.read_text())["providers"]


def test_folders_of_the_agents_own_settings_are_respected(
    ft: Cli, models: Gateway, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OWN_FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / "own" / name))
    for agent in FILES:
        assert ft("launch", agent, "--config-only").code == 0
    assert list(home.iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == sorted(OWN_FOLDERS)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("cluade",), 2, "Did you mean: ft launch claude?"),
        (("emacs",), 2, "There are: claude, codex, opencode, pi, qwen, cline"),
        (("pi", "--model", "deaf"), 1, "deaf cannot call tools"),
        (("pi", "--model", "gone"), 5, "ft pull"),
    ],
)
def test_refusals(
    words: tuple[str, ...], code: int, said: str, ft: Cli, models: Gateway, home: Path
) -> None:
    if "deaf" in words:
        models.on("POST", "/api/show", SHOWN)
    if "gone" in words:
        models.on("POST", "/api/show", Reply({"error": "model 'gone' not found"}, 404))
    done = ft("launch", *words)
    assert done.code == code
    assert said in done.err
    assert list(home.iterdir()) == []


def test_which_model_must_be_said_when_there_are_several(
    ft: Cli, models: Gateway, home: Path
) -> None:
    models.on("GET", "/api/tags", {"models": [{"name": "a"}, {"name": "b"}]})
    done = ft("launch", "pi")
    assert done.code == 2
    assert "There are: a, b" in done.err
    models.on("GET", "/api/tags", {"models": []})
    assert "ft pull MODEL" in ft("launch", "pi").err


def test_a_small_context_is_warned_of(ft: Cli, models: Gateway, home: Path) -> None:
    models.on("GET", "/v1/models/m", {"id": "m", "max_model_len": 4096})
    done = ft("launch", "pi", "--dry-run")
    assert "context of 4096 tokens" in done.err


def test_no_agent_asks_for_more_output_than_a_quarter_of_the_context() -> None:
    assert Target("u", "m", 8192).output_tokens == 2048
    assert Target("u", "m", 1 << 20).output_tokens == 32768

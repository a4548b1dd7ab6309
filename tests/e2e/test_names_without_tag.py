"""A dotted name without a tag means the index's default tag, through every door."""

from __future__ import annotations

from pathlib import Path

import httpx
import ollama
import openai

from tests.e2e.processes import REAL, manager_process
from tests.fakes.tiny_models import build_tiny

NAME = "tiny3.6-35b"
ENTRY = """
name = "{name}"
family = "qwen3_moe"
license = "apache-2.0"
summary = "A tiny model behind a name with dots and dashes."
default_tag = "nvfp4"
[tag.nvfp4]
format = "f32"
total_params = 1e6
active_params = 1e6
bytes = 0
checked = "never"
sources = ["{source}"]
files = ["*.safetensors", "*.json", "*.jinja"]
"""


def registry_with(folder: Path, source: Path) -> Path:
    """An index folder with one entry."""
    (folder / "models").mkdir(parents=True)
    text = ENTRY.format(name=NAME, source=source.as_uri())
    (folder / "models" / f"{NAME}.toml").write_text(text)
    return folder


def test_every_door_knows_the_name(tmp_path: Path) -> None:
    checkpoint = build_tiny("qwen3_moe", tmp_path / "checkpoint")
    registry = registry_with(tmp_path / "registry", checkpoint)
    with manager_process(tmp_path / "home", REAL, FT_REGISTRY=str(registry)) as manager:
        native = ollama.Client(host=manager.url, trust_env=False, timeout=60)
        assert native.pull(NAME).status == "success"
        assert [model.model for model in native.list().models] == [f"{NAME}:nvfp4"]
        for spelling in (NAME, f"{NAME}:latest", f"{NAME}:nvfp4", NAME.upper()):
            assert native.show(spelling).details is not None
        options = {"temperature": 0, "num_predict": 2}
        said = native.chat(NAME, [{"role": "user", "content": "hi"}], options=options)
        assert said.model == NAME
        assert [model.model for model in native.ps().models] == [f"{NAME}:nvfp4"]
        other = openai.OpenAI(
            base_url=f"{manager.url}/v1", api_key="x", http_client=httpx.Client(trust_env=False)
        )
        answer = other.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "hi"}], max_tokens=2
        )
        assert answer.model == NAME
        assert other.models.retrieve(NAME).id
        native.copy(NAME, "second")
        native.delete(NAME)
        assert [model.model for model in native.list().models] == ["second:latest"]

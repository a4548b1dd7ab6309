"""Every packaged registry file and Modelfile is well formed and fits the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftman.catalog.modelfile import parse_modelfile
from ftman.pull.hub import parse_hub
from ftman.pull.index import Index, read_entry_file
from ftman.pull.pypi import parse_pypi

ROOT = Path(__file__).parents[2]
ENTRIES = sorted((ROOT / "registry" / "models").glob("*.toml"))
MODELFILES = sorted((ROOT / "modelfiles").glob("*.Modelfile"))
WANTED = (
    "smollm2 smollm2-moe qwen3.6-35b glm-5.2 deepseek-v4-flash gpt-oss qwen3 glm-4.7 "
    "minimax-m2.5 gemma4"
)


def test_the_promised_models_are_there(tmp_path: Path) -> None:
    names = {entry.name for entry in Index.load((), tmp_path).all()}
    assert set(WANTED.split()) <= names


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
def test_an_entry_obeys_the_schema_and_its_sources_parse(path: Path) -> None:
    entries = read_entry_file(path)
    assert [entry for entry in entries if entry.is_default]
    for entry in entries:
        assert entry.active_params <= entry.total_params
        for source in entry.sources:
            if source.startswith("hf://"):
                place = parse_hub(source, entry.files)
                assert place.patterns
            if source.startswith("pypi://"):
                wheel = parse_pypi(source, entry.wheel_sha256, entry.wheel_bytes)
                name = wheel.member.rpartition("/")[2]
                assert name in entry.sha256
                assert entry.bytes > 0


@pytest.mark.parametrize("path", MODELFILES, ids=lambda path: path.stem)
def test_a_modelfile_parses_and_names_its_model(path: Path) -> None:
    parsed = parse_modelfile(path.read_bytes(), path.name)
    assert parsed.sources == (path.stem,)
    assert parsed.parameters or parsed.last("parser")
    assert not parsed.warnings
    assert (ROOT / "registry" / "models" / f"{path.stem}.toml").is_file()


def test_no_package_host_is_named() -> None:
    for path in (*ENTRIES, *MODELFILES):
        assert "https://" not in path.read_text()

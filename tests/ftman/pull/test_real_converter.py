"""Pulls with the engine's own converter: tiny models from a folder and over the network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.convert.job import COMMAND
from ftman.errors import FtmanError, UnsupportedError
from ftman.pull.jobs import PullOptions
from ftman.pull.source import LocalSource
from ftman.pull.supply import SupplySettings
from tests.fakes.hub import BadHub
from tests.fakes.tiny_models import build_tiny, build_tiny_gguf
from tests.ftman.pull.conftest import Station, options
from tests.ftman.pull.test_pull import puller


def real(supply: SupplySettings | None = None) -> PullOptions:
    """The small test settings with the real converter."""
    return replace(options(), converter=COMMAND, supply=supply or SupplySettings())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_gguf("llama", tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_smollm2_from_a_folder_with_a_tiny_gguf(station: Station, tiny: Path) -> None:
    found = station.pull("smollm2", real(), local=LocalSource(tiny.parent))
    assert found[-1].status == "success"
    model = station.catalog.find("smollm2")
    assert model.name.short == "smollm2:135m"
    assert (model.details.family, model.capabilities) == ("llama", ("completion",))
    assert station.catalog.verify(model) == []
    assert station.pull("smollm2", real(), local=LocalSource(tiny.parent))[-1].detail
    station.pull("smollm2-moe", real(), local=LocalSource(tiny.parent))
    config = json.loads((station.catalog.find("smollm2-moe").ftw_path / "config.json").read_text())
    assert config["num_local_experts"] == 8


def test_a_folder_of_safetensors_and_the_hub_make_the_same_model(
    station: Station, hub: BadHub, tmp_path: Path
) -> None:
    folder = build_tiny("qwen3_moe", tmp_path / "moe")
    station.pull(str(folder), real())
    here = station.catalog.find("moe")
    hub.add_repo("org/moe", {path.name: path.read_bytes() for path in folder.iterdir()})
    station.pull("hf.co/org/moe", replace(real(), hub_endpoint=hub.url))
    there = station.catalog.find("hf.co/org/moe")
    assert there.ftw_id == here.ftw_id
    assert there.details.family == "qwen3_moe"


@pytest.mark.slow
def test_windows_make_the_same_model_even_after_kills(
    station: Station, hub: BadHub, tiny: Path, tmp_path: Path
) -> None:
    station.pull("tiny", real(), local=LocalSource(tiny))
    size = tiny.stat().st_size
    hub.add_repo("org/tiny", {"tiny.gguf": tiny.read_bytes()})
    given = {
        "converter": list(COMMAND),
        "installed": "hf.co/org/tiny",
        "hub": hub.url,
        "window_over": 1,
        "window_bytes": size // 9,
    }
    home, killed = tmp_path / "other", 0
    for plan in ("pull.after_range:3=kill", "files.rename:9=kill", "files.unlink:7=kill", ""):
        done = puller(home, "hf://org/tiny/tiny.gguf", plan, **given)
        killed += done.returncode == -9
    assert done.returncode == 0, done.stderr
    assert killed >= 2
    assert done.stdout.strip() == station.catalog.find("tiny").ftw_id
    assert Station(home).leftovers() == []


def test_a_family_that_is_not_built_is_refused_by_its_header(
    station: Station, hub: BadHub, tmp_path: Path
) -> None:
    folder = build_tiny(
        "qwen3",
        tmp_path / "other",
        config_changes={"model_type": "dbrx", "architectures": ["DbrxForCausalLM"]},
    )
    hub.add_repo("org/other", {path.name: path.read_bytes() for path in folder.iterdir()})
    with pytest.raises(UnsupportedError, match=r"not built yet; built: .*llama"):
        station.pull("hf.co/org/other", replace(real(), hub_endpoint=hub.url))
    weights = [a for a in hub.asked if a.path.endswith(".safetensors")]
    assert sum(item.sent for item in weights) < 20_000


def test_a_file_that_only_looks_like_gguf_is_refused(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 5000)
    with pytest.raises(FtmanError, match=r"bad\.gguf"):
        station.pull(str(path), real())
    assert not station.catalog.models()

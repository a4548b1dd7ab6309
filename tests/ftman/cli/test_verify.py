"""ft verify and ft registry: what is printed, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import Gateway, Reply

DAMAGE = {"file": "weights-00000.ftw", "reason": "block 3 is wrong", "start": 48, "end": 64}
WHOLE = {"name": "m:latest", "damage": [], "left": [], "done": ""}
BROKEN = {"name": "n:latest", "damage": [DAMAGE], "left": [DAMAGE], "done": ""}
MENDED = {**BROKEN, "left": [], "done": "16 bytes made anew in place"}


def answer(*models: object) -> Reply:
    progress = {"status": "verifying m:latest", "total": 10, "completed": 10}
    return Reply([progress, {"status": "success", "models": list(models)}])


def test_damage_is_named_with_its_place_and_the_remedy(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/verify", answer(WHOLE, BROKEN))
    done = ft("verify")
    assert done.code == 1
    assert "m:latest   whole" in done.out
    assert "n:latest   DAMAGED in 1 place" in done.out
    assert "weights-00000.ftw 48-64: block 3 is wrong" in done.out
    assert "ft verify n:latest --repair" in done.out
    assert gateway.bodies("/api/ft/verify") == [{"model": "", "repair": False}]


def test_what_was_repaired_is_told(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/verify", answer(MENDED))
    done = ft("verify", "n", "--repair")
    assert done.code == 0
    assert "n:latest   repaired: 16 bytes made anew in place" in done.out


def test_json_passes_the_stream_on(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/verify", answer(WHOLE))
    lines = [json.loads(line) for line in ft("verify", "--json").out.splitlines()]
    assert lines[-1] == {"status": "success", "models": [WHOLE]}


def test_a_registry_of_local_files_is_checked_and_dated(ft: Cli, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(b"GGUF" + bytes(996))
    path = tmp_path / "registry" / "models" / "tiny.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        'name = "tiny"\nfamily = "llama"\nlicense = "mit"\nsummary = "A tiny model"\n'
        'default_tag = "a"\n[tag.a]\nformat = "q8_0"\ntotal_params = 1\nactive_params = 1\n'
        f'bytes = 1000\nchecked = "never"\nsources = ["{model.as_uri()}"]\n'
    )
    folder = ("--folder", str(tmp_path / "registry"))
    done = ft("registry", "check", "tiny", *folder, "--write")
    assert done.code == 0
    assert "as the entry says   1 KB in 1 files" in done.out
    assert "never" not in path.read_text()
    model.write_bytes(b"GGUF" + bytes(9))
    done = ft("registry", "check", *folder)
    assert done.code == 1
    assert "the entry says 1000 bytes" in done.out

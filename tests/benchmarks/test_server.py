"""The comparison of whole servers, with scripted engines behind both managers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.server import PORT, Prompts, Recipe, measure, peers, running
from ftman.config import Paths
from tests.e2e.processes import FAKE, ROOT
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of, install


def recipe(name: str, home: Path, script: FakeScript) -> Recipe:
    install(Paths(home, home / "models"), Tiny(context=2048))
    settings = {"FT_HOME": str(home), "FT_HOST": f"127.0.0.1:{PORT}", "PYTHONPATH": str(ROOT)}
    return Recipe(name, (*FAKE, script.to_json()), "tiny", settings)


@pytest.mark.slow
def test_a_slower_server_loses_in_every_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ids_of("ab" * 26)
    fast = recipe("ours", tmp_path / "fast", FakeScript(tokens=words, token_s=0.001))
    slow_script = FakeScript(tokens=words, token_s=0.01, load_s=1.0)
    slow = recipe("peer", tmp_path / "slow", slow_script)
    (words_file,) = (tmp_path / "fast").glob("models/ftw/*/tokenizer.json")
    measure([fast, slow], Prompts(Tokenizer.from_file(str(words_file))), 1, tmp_path / "log")
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["name"] == "server"
    assert line["ratios"]["decode"] > 2
    assert line["ratios"]["prefill_512"] > 1
    assert 0 < line["ratios"]["start"] < 1
    own = {"ours", "ours_unprepared", "ours_from_nothing"}
    assert set(line["measured"]["start_s"]) == {*own, "peer"}


def test_a_prompt_has_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    install(Paths(tmp_path, tmp_path / "models"), Tiny())
    (path,) = tmp_path.glob("models/ftw/*/tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    prompts = Prompts(tokenizer)
    texts = [prompts.text(40) for _ in range(3)]
    assert {len(tokenizer.encode(text).ids) for text in texts} == {40}
    assert len(set(texts)) == 3


def test_a_server_that_ends_is_no_endless_wait(tmp_path: Path) -> None:
    dead = Recipe("dead", (sys.executable, "-c", ""), "x")
    with (
        running(dead, tmp_path / "log") as server,
        pytest.raises(RuntimeError, match="dead did not answer"),
    ):
        server.ask("hello", 1)


def test_the_native_server_is_a_peer_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FT_PEER_PYTHON", sys.executable)
    monkeypatch.delenv("FT_PEER_SERVER", raising=False)
    assert [peer.name for peer in peers(tmp_path / "m.gguf", 2)] == ["llama_cpp.server"]
    monkeypatch.setenv("FT_PEER_SERVER", "/opt/llama-server")
    native = peers(tmp_path / "m.gguf", 2)[1]
    assert native.name == "llama-server"
    assert native.command[0] == "/opt/llama-server"
    assert PORT in native.command

"""The manager's memory: small before the first answer, and small again once a model is unloaded.

The model has a tokenizer of 250,000 tokens, which weighs a few hundred megabytes while it is held.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx

from ftman.config import Paths
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import CHAT, Rig, ask, fake, until
from tests.fakes.engine import FakeScript
from tests.fakes.tiny_models import write_tokenizer
from tests.ftman.gateway import serving
from tests.ftman.gateway.serving import ids_of, install

LIMIT_BYTES = 80_000_000
HELD_BYTES = 100_000_000
UNLOAD_LIMIT_S = 10.0
NUM_TOKENS = 250_000
SCRIPT = fake(FakeScript(tokens=ids_of("Hello world"), token_s=0.001))


def write_big_tokenizer(folder: Path) -> None:
    """The tiny tokenizer, grown by merges of everything with everything."""
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    value: dict[str, Any] = json.loads(path.read_text("utf-8"))
    vocab, merges = value["model"]["vocab"], value["model"]["merges"]
    characters = [token for token in vocab if len(token) == 1]
    grown = list(characters)
    for left in grown:  # which grows meanwhile: all pairs, then all triples
        for right in characters:
            if left + right not in vocab and len(vocab) < NUM_TOKENS:
                vocab[left + right] = len(vocab)
                merges.append([left, right])
                grown.append(left + right)
        if len(vocab) == NUM_TOKENS:
            break
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def test_a_big_tokenizer_is_gone_soon_after_its_model(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(serving, "write_tokenizer", write_big_tokenizer)
    install(Paths(rig.home, rig.home / "models"))
    with rig.manager(SCRIPT) as manager:
        pid, url = manager.process.pid, manager.url
        # What a user does before the first answer costs little, too.
        for path in ("/api/tags", "/api/ps", "/api/ft/search?q=moe", "/v1/models"):
            assert httpx.get(url + path, trust_env=False).status_code == 200
        assert invariants.vitals(pid).rss < LIMIT_BYTES, invariants.vitals(pid)
        for keep_alive, unload_s in ((0, 0.0), ("1s", 1.0)):
            answer = ask(url, CHAT | {"keep_alive": keep_alive})
            invariants.ended_once(answer)
            ended = time.monotonic()
            assert invariants.vitals(pid).peak > HELD_BYTES, "the tokenizer is not as big as meant"
            limit_s = unload_s + UNLOAD_LIMIT_S
            until(lambda: invariants.vitals(pid).rss < LIMIT_BYTES, limit_s)
            assert time.monotonic() - ended <= limit_s

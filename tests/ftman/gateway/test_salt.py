"""Requests of different API keys share nothing in the engine; those without keys share all."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from ftman.gateway.access import AccessRules
from ftman.keys import KeyRing, key_of
from tests.fakes.script import FakeScript
from tests.ftman.gateway.serving import ids_of, managing


def asked(home: Path, keys: tuple[str, ...], used: tuple[str, ...]) -> list[dict[str, object]]:
    """The wire requests that chats with these keys led to."""
    log = home / "log"
    script = FakeScript(tokens=ids_of("hi"), request_log=str(log))
    ring = KeyRing(given=[key_of(key, key) for key in keys])
    with managing(home, script, rules=AccessRules(keys=ring)) as manager:
        url = str(manager.http.base_url).rstrip("/") + "/v1/chat/completions"
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        for key in used:
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.post(url, json=body, headers=headers).status_code == 200
    return [json.loads(line)["request"] for line in log.read_text().splitlines()]


def test_each_key_has_a_salt_that_does_not_give_it_away(tmp_path: Path) -> None:
    found = asked(tmp_path, ("one", "two"), ("one", "two", "one"))
    salts = [str(item["salt"]) for item in found]
    assert salts[0] == salts[2] != salts[1]
    assert all(len(salt) == 32 and "one" not in salt for salt in salts)


def test_without_keys_everybody_shares(tmp_path: Path) -> None:
    found = asked(tmp_path, (), ("ollama", "anything"))
    assert [item["salt"] for item in found] == ["", ""]

"""Registries that speak Ollama's protocol: pulling from one, pushing to one, tokens, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftman.clock import SystemClock
from ftman.errors import FtmanError, NetworkError, NotFoundError, UnsupportedError, UsageError
from ftman.names import parse_name
from ftman.pull.ollama_registry import registry_name
from ftman.pull.ollama_registry_client import DeniedError
from ftman.pull.ollama_registry_push import PART_BYTES, Push, pushable
from ftman.pull.ollama_registry_sign import SigningKey, machine_key
from ftman.pull.progress import Progress
from tests.fakes.ed25519 import verify
from tests.fakes.ollama_registry import OllamaRegistry, digest_of
from tests.ftman.pull.conftest import Station, gguf_bytes

DATA = gguf_bytes(200_000, 3)
TEXTS: dict[str, Any] = {
    "template": "{{ .Prompt }}!",
    "system": "Be brief.",
    "params": {"stop": ["<x>"], "temperature": 0.5},
    "messages": [{"role": "user", "content": "Hi"}],
    "license": ["MIT", "Extra terms"],
}


class Hasty(SystemClock):
    """Waits for nothing."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def registry() -> Iterator[OllamaRegistry]:
    with OllamaRegistry() as served:
        yield served


def push(station: Station, name: str, to: str, **how: Any) -> list[Progress]:
    """Push an installed model to the end."""
    model = station.catalog.find(name)
    paths = station.config.paths

    async def run() -> list[Progress]:
        parcel = pushable(model, station.catalog, paths)
        sending = Push(parse_name(to), parcel, paths.home, how.get("insecure", True), Hasty())
        return [step async for step in sending.run()]

    return asyncio.run(run())


@pytest.mark.parametrize("scheme", [pytest.param("", marks=pytest.mark.slow), "ollama://"])
def test_weights_and_texts_of_a_manifest_are_installed(
    station: Station, registry: OllamaRegistry, scheme: str
) -> None:
    registry.publish("library/tiny:v1", DATA, **TEXTS)
    name = f"{registry.host}/library/tiny:v1"
    steps = station.pull(scheme + name, insecure=True)
    assert steps[-1].status == "success"
    digest = digest_of(DATA)
    assert any(s.status == f"pulling {digest[7:19]}" and s.digest == digest for s in steps)
    model = station.catalog.find(name)
    assert station.weights(name) == DATA
    assert (model.template, model.system) == ("{{ .Prompt }}!", "Be brief.")
    assert model.parameters == {"stop": ["<x>"], "temperature": 0.5}
    assert model.licenses == ("MIT", "Extra terms")
    assert [turn.content for turn in model.messages] == ["Hi"]
    assert model.source["origin"] == f"ollama://{name}"
    assert station.pull(scheme + name, insecure=True)[-1].detail == "up to date"


@pytest.mark.slow
def test_a_changed_manifest_is_pulled_again(station: Station, registry: OllamaRegistry) -> None:
    name = f"{registry.host}/me/tiny"
    registry.publish("me/tiny:latest", DATA, system="One.")
    station.pull(name, insecure=True)
    registry.publish("me/tiny:latest", DATA, system="Two.")
    station.pull(name, insecure=True)
    assert station.catalog.find(name).system == "Two."


def test_blobs_may_lie_behind_a_redirect_and_a_token(
    station: Station, registry: OllamaRegistry
) -> None:
    registry.needs_token = registry.direct = True
    registry.publish("library/tiny:latest", DATA, system="S.")
    station.pull(f"ollama://{registry.host}/library/tiny", insecure=True)
    assert station.weights(f"{registry.host}/library/tiny") == DATA
    assert registry.scopes == ["repository:x:pull,push"]
    ranged = [headers for _, path, headers in registry.asked if path.startswith("/direct/")]
    assert any("range" in headers for headers in ranged)
    key = station.config.paths.home / "keys" / "registry.pub"
    assert key.read_text().startswith("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA")


def test_names_that_are_not_there(station: Station, registry: OllamaRegistry) -> None:
    with pytest.raises(NotFoundError, match="pull model manifest: file does not exist"):
        station.pull(f"{registry.host}/library/none", insecure=True)
    with pytest.raises(UsageError, match="insecure protocol http"):
        station.pull(f"http://{registry.host}/library/none")
    with pytest.raises(NetworkError, match="cannot be asked"):
        station.pull("127.0.0.1:1/library/none", insecure=True)
    assert registry_name("ollama://llama3.2").full == "registry.ollama.ai/library/llama3.2:latest"


def test_without_insecure_only_https_is_spoken(station: Station, registry: OllamaRegistry) -> None:
    registry.publish("library/tiny:latest", DATA)
    with pytest.raises(NetworkError):
        station.pull(f"ollama://{registry.host}/library/tiny")
    assert registry.asked == []


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ([("adapter", b"x")], "is a LoRA adapter beside its base"),
        ([("tensor", b"x")], "is single tensors for another engine"),
        ([("model", b"second")], "has 2 weight files"),
    ],
)
def test_models_of_other_kinds_are_refused(
    station: Station, registry: OllamaRegistry, extra: list[tuple[str, bytes]], text: str
) -> None:
    registry.publish("library/odd:latest", DATA, extra=extra)
    with pytest.raises(UnsupportedError, match=text):
        station.pull(f"{registry.host}/library/odd", insecure=True)


@pytest.mark.slow
def test_a_projector_is_left_out_and_said(station: Station, registry: OllamaRegistry) -> None:
    registry.publish("library/sees:latest", DATA, extra=[("projector", b"x")])
    name = f"{registry.host}/library/sees"
    station.pull(name, insecure=True)
    assert any("reads images is left out" in note for note in station.catalog.find(name).notes)


@pytest.mark.parametrize("what", ["weights", "text", "manifest", "lost"])
def test_lies_of_a_registry_are_caught(
    station: Station, registry: OllamaRegistry, what: str
) -> None:
    manifest = registry.publish("library/bad:latest", DATA, system="Be brief.")
    if what == "weights":
        registry.blobs[digest_of(DATA)] = gguf_bytes(200_000, 4)
    elif what == "text":
        registry.blobs[digest_of(b"Be brief.")] = b"Be wicked"
    elif what == "lost":
        del registry.blobs[digest_of(DATA)]
    else:
        manifest["layers"][0]["digest"] = "sha256:short"
        registry.manifests["library/bad:latest"] = json.dumps(manifest).encode()
    with pytest.raises(FtmanError):
        station.pull(f"{registry.host}/library/bad", insecure=True)
    assert station.catalog.models() == []


def test_a_realm_on_another_host_gets_no_signature(
    station: Station, registry: OllamaRegistry
) -> None:
    registry.publish("library/tiny:latest", DATA)
    registry.needs_token, registry.realm_host = True, "evil.example"
    with pytest.raises(DeniedError, match=r'realm host "evil\.example" does not match'):
        station.pull(f"{registry.host}/library/tiny", insecure=True)


@pytest.mark.parametrize(
    "knobs",
    [
        {"direct": True, "needs_token": True, "flaky": 2},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"needs_token": True}, marks=pytest.mark.slow),
    ],
)
def test_what_was_pulled_and_kept_can_be_pushed(
    station: Station, registry: OllamaRegistry, knobs: dict[str, Any]
) -> None:
    registry.publish("library/tiny:latest", DATA, **TEXTS)
    name = f"{registry.host}/library/tiny"
    station.pull(name, insecure=True, keep_source=True)
    registry.blobs.clear()
    for knob, value in knobs.items():
        setattr(registry, knob, value)
    steps = push(station, name, f"{registry.host}/me/copy:v2")
    assert [step.status for step in steps][-2:] == ["pushing manifest", "success"]
    weights = [step for step in steps if step.digest == digest_of(DATA)]
    assert (weights[-1].completed, weights[-1].total) == (len(DATA), len(DATA))
    pushed = registry.layers("me/copy:v2")
    assert pushed["model"] == DATA
    assert pushed["system"] == b"Be brief."
    assert json.loads(pushed["params"])["temperature"] == 0.5
    station.pull(f"{registry.host}/me/copy:v2", insecure=True)
    assert station.catalog.find(f"{registry.host}/me/copy:v2").template == "{{ .Prompt }}!"


@pytest.mark.slow
def test_blobs_that_are_there_are_not_sent_again(
    station: Station, registry: OllamaRegistry
) -> None:
    registry.publish("library/tiny:latest", DATA)
    name = f"{registry.host}/library/tiny"
    station.pull(name, insecure=True, keep_source=True)
    registry.asked.clear()
    push(station, name, f"{registry.host}/me/again")
    sent = [path for method, path, _ in registry.asked if method == "PATCH"]
    assert len(sent) == 1  # the config; the weights are known


def test_a_model_without_its_source_file_is_not_pushed(
    station: Station, registry: OllamaRegistry
) -> None:
    registry.publish("library/tiny:latest", DATA)
    name = f"{registry.host}/library/tiny"
    station.pull(name, insecure=True)
    with pytest.raises(UnsupportedError, match="only its converted weights are here") as caught:
        push(station, name, f"{registry.host}/me/x")
    assert "--keep-source" in caught.value.hint
    model = station.catalog.find(name)
    for key in ("remake", "derive"):
        made = replace(model, source={**model.source, key: {"kind": "x"}})
        with pytest.raises(UnsupportedError, match="its weights were made here"):
            pushable(made, station.catalog, station.config.paths)
    several = replace(model, source={**model.source, "kind": "safetensors"})
    with pytest.raises(UnsupportedError, match="takes one GGUF file"):
        pushable(several, station.catalog, station.config.paths)


def test_a_damaged_kept_file_and_a_refusal_are_told(
    station: Station, registry: OllamaRegistry
) -> None:
    registry.publish("library/tiny:latest", DATA)
    name = f"{registry.host}/library/tiny"
    station.pull(name, insecure=True, keep_source=True)
    registry.flaky = 100
    registry.blobs.clear()
    with pytest.raises(NetworkError, match="answers 503 to PATCH: busy"):
        push(station, name, f"{registry.host}/me/x")
    with pytest.raises(UsageError, match="insecure protocol http"):
        push(station, name, f"http://{registry.host}/me/x", insecure=False)
    (kept,) = (station.config.paths.models / "sources").rglob("*.gguf")
    kept.write_bytes(DATA[:-1] + b"?")
    with pytest.raises(UnsupportedError, match="is damaged"):
        push(station, name, f"{registry.host}/me/x")
    assert PART_BYTES == 100_000_000


def test_signatures_are_those_of_the_standard(tmp_path: Path) -> None:
    # RFC 8032, 7.1, tests 1 to 3.
    for seed, message, public in (
        ("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", b"",
         "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"),
        ("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", b"\x72",
         "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"),
        ("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7", b"\xaf\x82",
         "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"),
    ):  # fmt: skip
        key = SigningKey(bytes.fromhex(seed))
        assert key.public.hex() == public
        assert verify(key.public, message, key.sign(message))
        assert not verify(key.public, message + b"x", key.sign(message))
    assert key.sign(b"\xaf\x82").hex().startswith("6291d657deec24024827e69c3abe01a30ce548a284743a4")
    one, two = machine_key(tmp_path), machine_key(tmp_path)
    assert one.public == two.public
    assert (tmp_path / "keys" / "registry.key").stat().st_mode & 0o077 == 0

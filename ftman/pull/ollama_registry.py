"""Models of registries that speak Ollama's protocol: manifests as sources, their texts as texts.

Bytes are fetched like any other: by ranges, resumed, checked against the manifest's digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ftman.catalog.manifest import (
    LICENSE_TYPE,
    MESSAGES_TYPE,
    PARAMS_TYPE,
    SYSTEM_TYPE,
    TEMPLATE_TYPE,
    Layer,
    Manifest,
)
from ftman.catalog.model import ModelChanges
from ftman.chat.types import Message
from ftman.clock import SYSTEM, Clock
from ftman.errors import NetworkError, NotFoundError, UnsupportedError, UsageError
from ftman.names import ModelName, parse_name, printable
from ftman.pull.ollama_registry_client import RegistryClient
from ftman.pull.source import Mirror, ResolvedSource, SourceFile

SCHEME = "ollama://"
_PREFIX = "application/vnd.ollama.image."
MODEL_TYPE = _PREFIX + "model"
_REFUSED = {
    _PREFIX + "adapter": "a LoRA adapter beside its base; create it here: FROM and ADAPTER",
    _PREFIX + "tensor": "single tensors for another engine; only GGUF models are built",
}
_LEFT_OUT = {
    _PREFIX + "projector": "the part that reads images is left out: this model reads text here",
    _PREFIX + "draft": "its draft model is left out: answers are the same, only slower",
}


class TextSource(Protocol):
    """Where the small layers of a model come from: a registry, or a store on this machine."""

    async def text(self, digest: str, size: int) -> bytes:
        """One layer, checked against its digest."""


@dataclass(frozen=True)
class Published:
    """A model as a registry publishes it."""

    name: ModelName
    source: ResolvedSource
    texts: ModelChanges
    notes: tuple[str, ...] = ()


def registry_name(text: str) -> ModelName:
    """`ollama://[host/][namespace/]model[:tag]` as a name.   Raises: UsageError."""
    return parse_name(text.removeprefix(SCHEME))


async def resolve_registry(
    name: ModelName, home: Path, insecure: bool, clock: Clock = SYSTEM
) -> Published:
    """Ask the registry for a model's manifest and small texts.

    Raises: NotFoundError, NetworkError, UnsupportedError, UsageError (plain http without insecure).
    """
    client = RegistryClient(name, home, insecure, clock)
    try:
        data = await _manifest(client, name)
        manifest = _parsed(data, name)
        weights = weights_of(manifest, name)
        if not await client.has_blob(weights.digest):
            raise NetworkError(f"{name.short}: its registry lacks the blob {weights.digest[:19]}")
        texts = await texts_of(client, manifest)
    finally:
        await client.close()
    mirror = Mirror(client.url(f"blobs/{weights.digest}"), name.host, client.token)
    file = SourceFile(f"{name.model}.gguf", weights.size, weights.digest, (mirror,))
    revision = f"sha256:{hashlib.sha256(data).hexdigest()}"
    source = ResolvedSource("gguf", (file,), SCHEME + name.full, revision)
    return Published(name, source, texts, left_out(manifest))


def left_out(manifest: Manifest) -> tuple[str, ...]:
    """What of a published model is not taken over, as notes."""
    return tuple(text for kind, text in _LEFT_OUT.items() if manifest.first(kind))


async def _manifest(client: RegistryClient, name: ModelName) -> bytes:
    status, data = await client.manifest()
    if status == 404:
        raise NotFoundError(
            "pull model manifest: file does not exist",
            hint=f"{name.host} has no {name.short}.",
            code="model_unknown",
        )
    if status >= 400:
        body = printable(data[:200].decode("utf-8", "replace"))
        raise NetworkError(f"pull model manifest: {status}: {body}")
    return data


def _parsed(data: bytes, name: ModelName) -> Manifest:
    try:
        return Manifest.from_json(data)
    except UsageError as error:
        raise NetworkError(f"the manifest of {name.short} cannot be read: {error}") from None


def weights_of(manifest: Manifest, name: ModelName) -> Layer:
    """The one layer that holds a model's weights.   Raises: UnsupportedError."""
    for layer in manifest.layers:
        if layer.media_type in _REFUSED:
            raise UnsupportedError(f"{name.short} is {_REFUSED[layer.media_type]}")
    found = [layer for layer in manifest.layers if layer.media_type == MODEL_TYPE]
    if len(found) != 1:
        raise UnsupportedError(
            f"{name.short} has {len(found)} weight files; models with one GGUF file are built"
        )
    return found[0]


async def texts_of(client: TextSource, manifest: Manifest) -> ModelChanges:
    """What a model's publisher wrote beside its weights.   Raises: FtmanError."""

    async def text(kind: str) -> str:
        layer = manifest.first(kind)
        return "" if layer is None else await _decoded(client, layer)

    config = _object(await _decoded(client, manifest.config))
    parameters = _object(await text(PARAMS_TYPE))
    licenses = [
        await _decoded(client, layer)
        for layer in manifest.layers
        if layer.media_type == LICENSE_TYPE
    ]
    return ModelChanges(
        template=await text(TEMPLATE_TYPE) or await text(_PREFIX + "prompt") or None,
        system=await text(SYSTEM_TYPE) or None,
        parameters=parameters or None,
        licenses_added=tuple(licenses),
        messages=_messages(await text(MESSAGES_TYPE)) or None,
        renderer=_string(config, "renderer"),
        parser=_string(config, "parser"),
        requires=_string(config, "requires"),
    )


async def _decoded(client: TextSource, layer: Layer) -> str:
    return (await client.text(layer.digest, layer.size)).decode("utf-8", "replace")


def _object(text: str) -> dict[str, Any]:
    value = _json(text)
    return value if isinstance(value, dict) else {}


def _messages(text: str) -> tuple[Message, ...]:
    value = _json(text)
    turns = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return tuple(Message(str(t.get("role", "")), str(t.get("content", ""))) for t in turns)


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise NetworkError("the registry's texts of this model are not JSON") from None


def _string(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    return value if isinstance(value, str) and value else None

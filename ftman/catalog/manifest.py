"""Manifests: the small JSON files that name a model's layers. No disk access here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ftman.errors import IntegrityError, UsageError

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
FTW_TYPE = "application/vnd.ft.model.ftw.v1+json"
INFO_TYPE = "application/vnd.ft.model.info.v1+json"
TEMPLATE_TYPE = "application/vnd.ollama.image.template"
SYSTEM_TYPE = "application/vnd.ollama.image.system"
PARAMS_TYPE = "application/vnd.ollama.image.params"
MESSAGES_TYPE = "application/vnd.ollama.image.messages"
LICENSE_TYPE = "application/vnd.ollama.image.license"
MANIFEST_LIMIT_BYTES = 4 << 20

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_FTW_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Layer:
    """One named piece of a model. digest is "sha256:<hex>"; size in bytes."""

    media_type: str
    digest: str
    size: int
    from_: str = ""

    @property
    def hex(self) -> str:
        """The digest without its algorithm."""
        return self.digest.partition(":")[2]


@dataclass(frozen=True)
class Manifest:
    """The layers of one model; the SHA-256 of its JSON is the model's digest."""

    config: Layer
    layers: tuple[Layer, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all layers and the config, as listings show it."""
        return self.config.size + sum(layer.size for layer in self.layers)

    @property
    def digests(self) -> frozenset[str]:
        """Every digest this manifest keeps alive."""
        return frozenset(layer.digest for layer in (self.config, *self.layers))

    def first(self, media_type: str) -> Layer | None:
        """The first layer of a kind."""
        return next((layer for layer in self.layers if layer.media_type == media_type), None)

    def to_json(self) -> bytes:
        """Encode; the bytes end with a newline and are the same for equal manifests."""
        value = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _layer_value(self.config),
            "layers": [_layer_value(layer) for layer in self.layers],
        }
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Decode.   Raises: IntegrityError saying what is wrong with it."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise IntegrityError("the manifest is not JSON") from None
        if not isinstance(value, dict) or not isinstance(value.get("layers"), list):
            raise IntegrityError("the manifest has no list of layers")
        layers = tuple(_layer_from(item) for item in value["layers"])
        return cls(_layer_from(value.get("config")), layers)


def normal_digest(text: str) -> str:
    """ "sha256:<lower-case hex>" for either spelling.   Raises: UsageError."""
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise UsageError("invalid digest format", hint="A digest is sha256: and 64 hex digits.")
    return "sha256:" + match.group(1).lower()


def is_ftw_id(text: str) -> bool:
    """True for 64 lower-case hex digits."""
    return _FTW_ID.fullmatch(text) is not None


def _layer_value(layer: Layer) -> dict[str, Any]:
    value = {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size}
    return value | ({"from": layer.from_} if layer.from_ else {})


def _layer_from(value: Any) -> Layer:
    if not isinstance(value, dict):
        raise IntegrityError("the manifest holds a layer that is not an object")
    media_type, digest, size = (value.get(key) for key in ("mediaType", "digest", "size"))
    if not isinstance(media_type, str) or not isinstance(digest, str):
        raise IntegrityError("the manifest holds a layer without media type or digest")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise IntegrityError("the manifest holds a layer without a size")
    try:
        digest = normal_digest(digest)
    except UsageError:
        raise IntegrityError("the manifest holds a layer with a malformed digest") from None
    origin = value.get("from")
    return Layer(media_type, digest, size, origin if isinstance(origin, str) else "")

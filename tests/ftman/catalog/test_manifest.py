"""Manifest JSON: Ollama's shape out, hostile bytes in."""

from __future__ import annotations

import json

import pytest

from ftman.catalog.manifest import Layer, Manifest, normal_digest
from ftman.errors import IntegrityError

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_json_has_ollamas_shape_and_round_trips() -> None:
    manifest = Manifest(Layer("c", A, 1), (Layer("l", B, 2, "parent"),))
    assert json.loads(manifest.to_json()) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "c", "digest": A, "size": 1},
        "layers": [{"mediaType": "l", "digest": B, "size": 2, "from": "parent"}],
    }
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.size_bytes == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"layers":[]}',
        b'{"config":{},"layers":[]}',
        b'{"config":{"mediaType":"c","digest":"sha256:../x","size":1},"layers":[]}',
        b'{"config":{"mediaType":"c","digest":1,"size":1},"layers":[]}',
        b"[" * 200_000,
        b"\xff\xfe",
        b'{"config":{"mediaType":"c","digest":"' + A.encode() + b'","size":-1},"layers":[]}',
        b'{"config":{"mediaType":"c","digest":"' + A.encode() + b'","size":true},"layers":[]}',
    ],
)
def test_malformed_manifests_are_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        Manifest.from_json(data)


def test_either_spelling_of_a_digest_is_the_same() -> None:
    assert normal_digest("sha256-" + "A" * 64) == A

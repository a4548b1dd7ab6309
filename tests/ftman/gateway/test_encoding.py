"""Compressed bodies: every coding in every cut, bombs stopped early, nonsense refused."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
import zstandard

from ftman.gateway.body import FieldError
from ftman.gateway.encoding import Decoder
from tests.ftman.gateway.serving import Manager

TEXT = b'{"model": "m", "prompt": "' + b"why is the sky blue? " * 300 + b'"}'


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "DEFLATE": bare_deflate,
    "zstd": zstandard.ZstdCompressor().compress,
    "identity": bytes,
    "": bytes,
}


def decoded(coding: str, data: bytes, step: int, limit: int = 1 << 20) -> bytes:
    decoder = Decoder(coding, limit)
    out = b""
    for start in range(0, len(data), step):
        out += b"".join(decoder.feed(data[start : start + step]))
    decoder.finish()
    return out


@pytest.mark.parametrize("step", [1, 7, 255, 1 << 20])
@pytest.mark.parametrize("coding", PACKERS)
def test_a_body_reads_the_same_however_it_is_cut(coding: str, step: int) -> None:
    assert decoded(coding, PACKERS[coding](TEXT), step) == TEXT


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_frames_one_after_another_are_one_body(coding: str) -> None:
    pack = PACKERS[coding]
    assert decoded(coding, pack(TEXT) + pack(b"") + pack(TEXT), 100) == TEXT + TEXT


def test_zstd_without_a_content_size_is_read() -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    data = packer.compress(TEXT) + packer.flush()
    assert decoded("zstd", data, 64) == TEXT


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_a_bomb_is_refused_before_it_unfolds(coding: str) -> None:
    bomb = PACKERS[coding](bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(FieldError) as refused:
            decoded(coding, bomb, 1 << 20, limit=2 << 20)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert "larger than 2 MiB" in refused.value.message


def test_the_limit_itself_is_allowed() -> None:
    assert len(decoded("zstd", PACKERS["zstd"](bytes(1 << 20)), 999)) == 1 << 20
    with pytest.raises(FieldError):
        decoded("zstd", PACKERS["zstd"](bytes((1 << 20) + 1)), 999)
    with pytest.raises(FieldError):
        decoded("", bytes((1 << 20) + 1), 9999)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_frames_that_hold_nothing_do_not_go_on_for_ever(coding: str) -> None:
    with pytest.raises(FieldError) as refused:
        decoded(coding, PACKERS[coding](b"") * 3000, 1000, limit=10_000)
    assert refused.value.status == 413


def test_a_zstd_window_beyond_http_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(TEXT) + packer.flush()
    with pytest.raises(FieldError, match="zstd"):
        decoded("zstd", data, 1 << 16)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_cut_or_foreign_data_is_refused(coding: str) -> None:
    whole = PACKERS[coding](TEXT)
    with pytest.raises(FieldError, match="ends too early"):
        decoded(coding, whole[:-3], 50)
    with pytest.raises(FieldError, match=f"not valid {coding} data"):
        decoded(coding, b"{}" * 40, 50)
    with pytest.raises(FieldError, match="not valid"):
        decoded(coding, whole + b"garbage", 1 << 20)


def test_an_unknown_coding_names_the_known_ones() -> None:
    with pytest.raises(FieldError, match="use zstd, gzip, deflate or none") as refused:
        Decoder("br", 10)
    assert refused.value.status == 415


def test_a_compressed_request_is_answered(manager: Manager) -> None:
    body = zstandard.ZstdCompressor().compress(b'{"model": "tiny:latest"}')
    reply = manager.http.post("/api/show", content=body, headers={"content-encoding": "zstd"})
    assert reply.status_code == 200
    reply = manager.http.post("/api/show", content=b"{}", headers={"content-encoding": "br"})
    assert reply.status_code == 415

"""What the scripted engine answers to /embed: vectors out of a hash, the same on every machine."""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from collections.abc import Sequence

from ftengine.protocol import EmbedReply, EmbedRequest


def reply_to(request: EmbedRequest, size: int, nan: bool = False) -> EmbedReply:
    """An honest answer in shape: pooled, cut, normalised. nan: every number is not a number."""
    numbers = [vector_of(ids, request, size) for ids in request.inputs]
    if nan:
        numbers = [[math.nan] * len(item) for item in numbers]
    vectors = [base64.b64encode(struct.pack(f"<{len(n)}f", *n)).decode() for n in numbers]
    tokens = sum(map(len, request.inputs))
    return EmbedReply(tuple(vectors), len(numbers[0]), tokens, 0.0, 0.001)


def vector_of(ids: Sequence[int], request: EmbedRequest, size: int) -> list[float]:
    """Numbers in [-1, 1) out of a hash, cut and normalised as asked."""
    chosen = {"mean": tuple(ids), "last": tuple(ids[-1:]), "cls": tuple(ids[:1])}[request.pooling]
    seed = repr(chosen).encode()
    found = [
        hashlib.sha256(b"%d %s" % (place, seed)).digest()[0] / 128 - 1.0 for place in range(size)
    ][: request.dimensions]
    length = math.sqrt(sum(number * number for number in found)) if request.normalize else 1.0
    return [number / (length or 1.0) for number in found]

"""Checks an Ed25519 signature with affine arithmetic: slow, and not the code under test.

Source: RFC 8032, section 5.1.7.
"""

from __future__ import annotations

import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Affine = tuple[int, int]


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is that of `message` under `public`."""
    if len(signature) != 64 or len(public) != 32:
        return False
    commitment, key = _decode(signature[:32]), _decode(public)
    if commitment is None or key is None:
        return False
    answer = int.from_bytes(signature[32:], "little")
    hashed = hashlib.sha512(signature[:32] + public + message).digest()
    challenge = int.from_bytes(hashed, "little") % L
    return answer < L and _times(answer, _base()) == _add(commitment, _times(challenge, key))


def _base() -> Affine:
    point = _decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    assert point is not None
    return point


def _decode(data: bytes) -> Affine | None:
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return None
    return (P - x if x & 1 != sign else x), y


def _add(one: Affine, two: Affine) -> Affine:
    (x1, y1), (x2, y2) = one, two
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P
    return x, y


def _times(count: int, point: Affine) -> Affine:
    total: Affine = (0, 1)
    while count:
        if count & 1:
            total = _add(total, point)
        point = _add(point, point)
        count >>= 1
    return total

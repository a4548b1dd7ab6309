"""Ed25519 signatures and this machine's key for registries that ask who is there.

Source: RFC 8032, section 5.1, written for one signature per pull, not for speed or secrecy of
timing: whoever can time this process can read the key's file too.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import struct
from pathlib import Path

from ftman import files

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_SQRT_MINUS_1 = pow(2, (_P - 1) // 4, _P)
Point = tuple[int, int, int, int]
SEED_BYTES = 32


class SigningKey:
    """One key pair. seed: its 32 secret bytes."""

    def __init__(self, seed: bytes):
        digest = hashlib.sha512(seed).digest()
        number = int.from_bytes(digest[:32], "little")
        self._scalar = (number & ((1 << 254) - 8)) | (1 << 254)
        self._prefix = digest[32:]
        self.public = _encode(_times(self._scalar, _BASE))

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of a signature."""
        nonce = _hash_number(self._prefix + message)
        point = _encode(_times(nonce, _BASE))
        challenge = _hash_number(point + self.public + message)
        answer = (nonce + challenge * self._scalar) % _L
        return point + answer.to_bytes(32, "little")

    @property
    def public_text(self) -> str:
        """The public key as OpenSSH writes it, base64 without its type and comment."""
        kind = b"ssh-ed25519"
        blob = struct.pack(">I", len(kind)) + kind + struct.pack(">I", 32) + self.public
        return base64.b64encode(blob).decode()


def machine_key(home: Path) -> SigningKey:
    """This machine's key, made when first needed; beside it lies what a registry wants to know.

    Raises: OSError.
    """
    path = home / "keys" / "registry.key"
    try:
        seed = bytes.fromhex(files.read_bytes(path, limit=1024).decode().strip())
    except (FileNotFoundError, ValueError):
        seed = b""
    if len(seed) != SEED_BYTES:
        seed = secrets.token_bytes(SEED_BYTES)
        files.make_dir(path.parent)
        files.write_atomic(path, seed.hex().encode() + b"\n")
        public = f"ssh-ed25519 {SigningKey(seed).public_text}\n"
        files.write_atomic(path.with_suffix(".pub"), public.encode())
    return SigningKey(seed)


def _hash_number(data: bytes) -> int:
    return int.from_bytes(hashlib.sha512(data).digest(), "little") % _L


def _recovered_x(y: int) -> int:
    """The even x of a point on the curve."""
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _SQRT_MINUS_1 % _P
    return _P - x if x & 1 else x


def _add(one: Point, two: Point) -> Point:
    """Sum in extended coordinates."""
    a = (one[1] - one[0]) * (two[1] - two[0]) % _P
    b = (one[1] + one[0]) * (two[1] + two[0]) % _P
    c = 2 * one[3] * two[3] * _D % _P
    d = 2 * one[2] * two[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: Point) -> Point:
    total: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    return total


def _encode(point: Point) -> bytes:
    inverse = pow(point[2], _P - 2, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | ((x & 1) << 255)).to_bytes(32, "little")


_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE_X = _recovered_x(_BASE_Y)
_BASE: Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)

"""Images of native requests: base64 as Go checks it. No built family can see, so none goes on."""

from __future__ import annotations

from typing import Any

from ftman.gateway.body import FieldError, Fields

_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


def has_images(fields: Fields) -> bool:
    """Whether a request or a message brings images.   Raises: FieldError for what is no base64."""
    images = fields.items("images")
    for image in images:
        _check(fields, image)
    return bool(images)


def _check(fields: Fields, image: Any) -> None:
    if not isinstance(image, str):
        fields.wrong("images", "string", image)
    place = first_bad_byte(image)
    if place is not None:
        raise FieldError(f"illegal base64 data at input byte {place}", "images")


def first_bad_byte(text: str) -> int | None:
    """Where Go's decoder stops reading standard base64 with padding, None if it does not."""
    body = text.rstrip("\r\n")
    bad = next((i for i, ch in enumerate(body) if ch not in _ALPHABET and ch not in "\r\n"), None)
    end = len(body) if bad is None else bad
    digits = [i for i in range(end) if body[i] in _ALPHABET]
    over = len(digits) % 4
    if bad is None:
        return None if over == 0 else len(body) - over
    if body[bad] != "=" or over < 2:
        return bad
    rest = body[bad:].replace("\r", "").replace("\n", "")
    wanted = "=" * (4 - over)
    if rest == wanted:
        return None
    return len(body) if wanted.startswith(rest) else bad + (len(wanted) if over == 3 else 1)

"""Who asks, and how urgently: set by the gateway for the request in work, read further down."""

from __future__ import annotations

import contextvars
import hashlib

salt: contextvars.ContextVar[str] = contextvars.ContextVar("salt", default="")
"""What the request in work may share with others: only those of the same salt. "" without keys."""

background: contextvars.ContextVar[bool] = contextvars.ContextVar("background", default=False)
"""Whether the request in work gives way to others that wait."""


def salt_of(key: str) -> str:
    """The salt of an API key; it does not give the key away."""
    return hashlib.sha256(b"ft caller\0" + key.encode()).hexdigest()[:32] if key else ""

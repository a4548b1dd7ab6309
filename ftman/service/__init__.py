"""Use cases, the only join of text, catalog, pull and supervisor. Read service.py first."""

from ftman.service.service import Service

__all__ = ["Service"]

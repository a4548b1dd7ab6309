"""Plain: a reply is text and nothing else."""

from __future__ import annotations

from ftman.chat.formats.base import ChatFormat

FORMAT = ChatFormat(name="plain")

"""Model names: [scheme://][host/][namespace/]model[:tag], as Ollama writes them.

The grammar and the shortest display live here; which tag a name without one means is decided by
the catalog, which knows what is installed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ftman.errors import UsageError

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.:]{0,349}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,79}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.]{0,79}")
_SHOWN_LIMIT = 80
NAME_HINT = "A name looks like qwen3.6-35b, qwen3.6-35b:nvfp4 or hf.co/org/repo:Q4_K_M."


@dataclass(frozen=True)
class ModelName:
    """A parsed name. `tag` is "latest" when none was written; `tagged` tells the two apart."""

    model: str
    tag: str = DEFAULT_TAG
    namespace: str = DEFAULT_NAMESPACE
    host: str = DEFAULT_HOST
    scheme: str = "https"
    tagged: bool = False

    @property
    def short(self) -> str:
        """Shortest display: default host and namespace dropped, tag always shown."""
        return f"{self.stem}:{self.tag}"

    @property
    def stem(self) -> str:
        """`short` without the tag."""
        if self.host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{self.model}"
        if self.namespace != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{self.model}"
        return self.model

    @property
    def full(self) -> str:
        """Every part written out."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def asks_latest(self) -> bool:
        """True when the name leaves the choice of tag open (no tag, or `latest`)."""
        return self.tag.lower() == DEFAULT_TAG

    @property
    def path_parts(self) -> tuple[str, str, str, str]:
        """Folder names below `manifests/`."""
        return (self.host, self.namespace, self.model, self.tag)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Equal for names that differ in letter case only."""
        host, namespace, model, tag = (part.lower() for part in self.path_parts)
        return host, namespace, model, tag

    def with_tag(self, tag: str) -> ModelName:
        """The same model under another tag."""
        return replace(self, tag=tag, tagged=True)


def parse_name(text: str) -> ModelName:
    """Parse a model name.   Raises: UsageError (code "invalid_name") saying which part is wrong."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "https", text
    head, slash, last = rest.rpartition("/")
    model, colon, tag = last.partition(":")
    if colon and not tag:
        raise _bad(text, "the tag after ':' is empty")
    host, namespace = DEFAULT_HOST, DEFAULT_NAMESPACE
    if slash:
        front, inner, namespace = head.rpartition("/")
        if inner:
            host = front
            _require(_HOST, host, text, "host")
        _require(_NAMESPACE, namespace, text, "namespace")
    _require(_PART, model, text, "model")
    if colon:
        _require(_PART, tag, text, "tag")
    for part in (host, namespace, model, tag):
        if part.endswith(".") or ".." in part:
            raise _bad(text, "a part may not end with '.' or hold '..'")
    return ModelName(model, tag or DEFAULT_TAG, namespace, host, scheme, bool(colon))


def near_names(text: str, known: Iterable[str]) -> list[str]:
    """At most three of the `known` names that somebody who wrote `text` may have meant."""
    return difflib.get_close_matches(text.lower(), sorted(set(known)), 3, cutoff=0.7)


def is_valid_name(text: str) -> bool:
    """True if `parse_name` accepts the text."""
    try:
        parse_name(text)
    except UsageError:
        return False
    return True


def printable(text: str) -> str:
    """Text from outside, safe for messages and logs: control characters escaped, length bounded."""
    shown = "".join(ch if ch.isprintable() else f"\\x{ord(ch):02x}" for ch in text[:_SHOWN_LIMIT])
    return shown + ("..." if len(text) > _SHOWN_LIMIT else "")


def _require(rule: re.Pattern[str], part: str, text: str, what: str) -> None:
    if not rule.fullmatch(part):
        raise _bad(text, f"the {what} {printable(part)!r} is not allowed")


def _bad(text: str, reason: str) -> UsageError:
    return UsageError(
        f"invalid model name {printable(text)!r}: {reason}",
        hint=NAME_HINT,
        code="invalid_name",
    )

"""A GGUF file at a plain URL."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from ftman.errors import NetworkError, UnsupportedError, UsageError
from ftman.names import ModelName, parse_name, printable
from ftman.pull.choose import split_siblings
from ftman.pull.download import Downloader
from ftman.pull.source import Mirror, ResolvedSource, SourceFile


def is_gguf_url(text: str) -> bool:
    """True for an http(s) URL whose path ends in .gguf."""
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and parts.path.lower().endswith(".gguf")


def url_name(url: str) -> ModelName:
    """A model name made from the file's name."""
    stem = PurePosixPath(_file_name(url)).stem
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.").replace("..", "-")
    return parse_name((text or "model")[:80].strip("-."))


def require_secure(url: str, insecure: bool) -> None:
    """Refuse plain http unless asked for.   Raises: UsageError with Ollama's text."""
    if urlsplit(url).scheme == "http" and not insecure:
        raise UsageError(
            "insecure protocol http", hint="Use https, or insist with --insecure.", code="insecure"
        )


async def resolve_url(
    url: str, downloader: Downloader, insecure: bool, sha256: str = ""
) -> ResolvedSource:
    """Ask the server for size and ETag.   Raises: UsageError, NetworkError, UnsupportedError."""
    require_secure(url, insecure)
    name = _file_name(url)
    if len(split_siblings(name)) > 1:
        raise UnsupportedError(
            f"{printable(name)} is one part of a split GGUF; a URL can only name a whole one",
            hint="Fetch all parts into a folder and pull from there.",
        )
    mirror = Mirror(url, group=urlsplit(url).netloc)
    probe = await downloader.probe(mirror)
    if not probe.total:
        raise NetworkError(f"{urlsplit(url).netloc} does not say how large {printable(name)} is")
    digest = f"sha256:{sha256}" if sha256 else ""
    file = SourceFile(name, probe.total, digest, (mirror,))
    revision = probe.etag if not probe.etag.startswith("W/") else ""
    return ResolvedSource("gguf", (file,), url.partition("?")[0], revision)


def _file_name(url: str) -> str:
    return PurePosixPath(unquote(urlsplit(url).path)).name

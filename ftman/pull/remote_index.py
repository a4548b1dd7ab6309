"""Registries on web servers: fetched file by file, cached with their ETag, usable offline."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from ftman import files
from ftman.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
MAX_MODELS = 10_000
FILE_LIMIT_BYTES = 1 << 20
INDEX_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


def fetch_remote(url: str, cache: Path) -> Path | None:
    """Bring the cached copy of a registry up to date and return its folder.

    Offline, the cached copy is used as it is; None if there is none.   Raises: UsageError on a
    scheme that is not http(s) or an index that is malformed.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"registry {url}: only folders, http and https URLs can be used")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise UsageError(f"registry {url}: insecure protocol http", hint="Use https.")
    folder = cache / "registry" / hashlib.sha256(url.encode()).hexdigest()[:16]
    try:
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
            _update(client, url.rstrip("/"), folder)
    except (httpx.HTTPError, OSError) as error:
        known = (folder / "index.toml").is_file()
        log.warning("registry %s cannot be reached (%s); %s", url, error, _fallback(known))
        return folder if known else None
    return folder


def _fallback(known: bool) -> str:
    return "the cached copy is used" if known else "it is left out"


def _update(client: httpx.Client, url: str, folder: Path) -> None:
    state = _read_state(folder)
    headers = {"If-None-Match": state["etag"]} if state.get("etag") else {}
    reply = client.get(f"{url}/index.toml", headers=headers)
    if reply.status_code == 304:
        return
    reply.raise_for_status()
    wanted = _parse_index(reply.content, url)
    for name, digest in wanted.items():
        path = folder / "models" / f"{name}.toml"
        if path.is_file() and files.sha256_file(path) == digest:
            continue
        body = client.get(f"{url}/models/{name}.toml").raise_for_status().content
        if len(body) > FILE_LIMIT_BYTES or hashlib.sha256(body).hexdigest() != digest:
            raise UsageError(
                f"registry {url}: models/{name}.toml does not match the digest in index.toml",
                hint="Its owner must write index.toml again.",
                code="bad_registry",
            )
        files.write_atomic(path, body)
    for path in sorted((folder / "models").glob("*.toml")):
        if path.stem not in wanted:
            files.unlink(path)
    files.write_atomic(folder / "index.toml", reply.content)
    state = {"url": url, "etag": reply.headers.get("etag", "")}
    files.write_atomic(folder / "state.json", json.dumps(state).encode())


def _read_state(folder: Path) -> dict[str, str]:
    try:
        value = json.loads((folder / "state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _parse_index(body: bytes, url: str) -> dict[str, str]:
    where = f"registry {url}: index.toml"
    try:
        if len(body) > FILE_LIMIT_BYTES:
            raise ValueError(f"larger than {FILE_LIMIT_BYTES} bytes")
        value = tomllib.loads(body.decode("utf-8"))
    except ValueError as error:
        raise UsageError(f"{where}: {error}", code="bad_registry") from None
    if value.get("version") != INDEX_VERSION:
        raise UsageError(f"{where}: version must be {INDEX_VERSION}", code="bad_registry")
    models = value.get("models")
    if not isinstance(models, dict) or len(models) > MAX_MODELS:
        raise UsageError(f"{where}: models must be a table of names", code="bad_registry")
    for name, digest in models.items():
        if not _NAME.fullmatch(name) or not re.fullmatch("[0-9a-f]{64}", str(digest)):
            raise UsageError(f"{where}: models.{name[:80]} is not valid", code="bad_registry")
    return models

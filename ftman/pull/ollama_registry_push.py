"""Sending a model to a registry that speaks Ollama's protocol: blobs in parts, then the manifest.

Only source files are sent: what a conversion made of them is this program's own form.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import httpx

from ftman import files
from ftman.catalog.catalog import Catalog
from ftman.catalog.content import config_facts
from ftman.catalog.manifest import CONFIG_TYPE, MANIFEST_TYPE, Layer, Manifest
from ftman.catalog.model import Model
from ftman.clock import Clock
from ftman.config import Paths
from ftman.errors import FtmanError, NetworkError, UnsupportedError
from ftman.names import ModelName, printable
from ftman.pull.https import require_secure
from ftman.pull.ollama_registry import MODEL_TYPE
from ftman.pull.ollama_registry_client import RegistryClient
from ftman.pull.progress import Progress

PART_BYTES = 100_000_000
TRIES = 6
_TEXT_PREFIX = "application/vnd.ollama.image."
_KEEP = "Pull it again with --keep-source; then it can be pushed."


@dataclass(frozen=True)
class Blob:
    """One layer and where its bytes are: a file, or the bytes themselves."""

    layer: Layer
    path: Path | None = None
    data: bytes = b""

    def part(self, start: int, end: int) -> bytes:
        """Some of its bytes."""
        if self.path is None:
            return self.data[start:end]
        with files.open_read(self.path) as reader:
            reader.seek(start)
            return reader.read(end - start)


@dataclass(frozen=True)
class Parcel:
    """Everything a push sends: layers in order, the config last."""

    blobs: tuple[Blob, ...]

    @property
    def manifest(self) -> bytes:
        """The manifest over them."""
        layers = tuple(blob.layer for blob in self.blobs)
        return Manifest(layers[-1], layers[:-1]).to_json()


def pushable(model: Model, catalog: Catalog, paths: Paths) -> Parcel:
    """What of a model can be sent. Reads and hashes its kept source file: for a thread.

    Raises: UnsupportedError saying why it cannot be pushed.
    """
    path = _kept_file(model, paths)
    digest = f"sha256:{files.sha256_file(path)}"
    known = str(model.source["files"][0].get("digest", ""))
    if known.startswith("sha256:") and known != digest:
        raise UnsupportedError(
            f"the kept source file {path.name} of {model.name.short} is damaged", hint=_KEEP
        )
    blobs = [Blob(Layer(MODEL_TYPE, digest, path.stat().st_size), path)]
    for layer in model.layers:
        if layer.media_type.startswith(_TEXT_PREFIX):
            blobs.append(Blob(layer, data=catalog.blobs.read(layer.digest)))
    config = json.dumps(config_facts(model), separators=(",", ":")).encode()
    config_digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    blobs.append(Blob(Layer(CONFIG_TYPE, config_digest, len(config)), data=config))
    return Parcel(tuple(blobs))


def _kept_file(model: Model, paths: Paths) -> Path:
    source, name = model.source, model.name.short
    if source.get("remake") or source.get("derive"):
        raise UnsupportedError(
            f"{name} cannot be pushed: its weights were made here, and exist only in ft's own form",
            hint="Push the model it was made from, with its source files kept.",
        )
    listed = source.get("files")
    names = [str(item.get("name", "")) for item in listed] if isinstance(listed, list) else []
    folder = paths.sources / str(source.get("identity", ""))[:16]
    if source.get("kind") != "gguf" or len(names) != 1:
        raise UnsupportedError(
            f"{name} cannot be pushed: a registry of this kind takes one GGUF file, and it came "
            f"from {len(names)} {source.get('kind', 'unknown')} files"
        )
    path = folder / Path(names[0]).name
    if not source.get("identity") or not path.is_file():
        raise UnsupportedError(
            f"{name} cannot be pushed: only its converted weights are here, not the file it came "
            "from",
            hint=_KEEP,
        )
    return path


class Push:
    """One push. Use once."""

    def __init__(self, target: ModelName, parcel: Parcel, home: Path, insecure: bool, clock: Clock):
        self._target = target
        self._parcel = parcel
        self._insecure = insecure
        self._clock = clock
        self._client = RegistryClient(target, home, insecure, clock)

    async def run(self) -> AsyncGenerator[Progress, None]:
        """Send everything; the last step is "success".   Raises: NetworkError, DeniedError."""
        try:
            for blob in self._parcel.blobs:
                layer = blob.layer
                step = Progress(f"pushing {layer.hex[:12]}", layer.digest, layer.size)
                yield step
                if not await self._client.has_blob(layer.digest):
                    async for sent in self._upload(blob):
                        yield replace(step, completed=sent)
                yield replace(step, completed=layer.size)
            yield Progress("pushing manifest")
            await self._put_manifest()
            yield Progress("success")
        finally:
            await self._client.close()

    async def _upload(self, blob: Blob) -> AsyncGenerator[int, None]:
        """The parts of one blob, in order; yields how many bytes are there."""
        reply = await self._checked("POST", self._client.url("blobs/uploads/"), {}, b"")
        where, sums = self._next_place(reply), hashlib.md5(usedforsecurity=False)
        parts = 0
        for start in range(0, max(1, blob.layer.size), PART_BYTES):
            end = min(start + PART_BYTES, blob.layer.size)
            data = await asyncio.to_thread(blob.part, start, end)
            sums.update(hashlib.md5(data, usedforsecurity=False).digest())
            parts += 1
            where = await self._send_part(where, start, data)
            yield end
        mark = f"{sums.hexdigest()}-{parts}"
        joint = "&" if "?" in where else "?"
        query = f"digest={quote(blob.layer.digest, safe='')}&etag={mark}"
        await self._checked("PUT", f"{where}{joint}{query}", {}, b"")

    async def _send_part(self, where: str, start: int, data: bytes) -> str:
        headers = {
            "Content-Range": f"{start}-{start + len(data) - 1}",
            "X-Redirect-Uploads": "1",
            "Content-Type": "application/octet-stream",
        }
        reply = await self._checked("PATCH", where, headers, data)
        following = self._next_place(reply)
        if reply.status_code == 307:
            direct = str(reply.url.join(reply.headers["location"]))
            require_secure(direct, self._insecure)
            kind = {"Content-Type": "application/octet-stream"}
            await self._checked("PUT", direct, kind, data, bare=True)
            return self._next_place(reply, redirected=True) or where
        return following or where

    async def _put_manifest(self) -> None:
        url = self._client.url(f"manifests/{quote(self._target.tag)}")
        await self._checked("PUT", url, {"Content-Type": MANIFEST_TYPE}, self._parcel.manifest)

    async def _checked(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes, *, bare: bool = False
    ) -> httpx.Response:
        """One request, repeated after short waits while the trouble may pass."""
        trouble: FtmanError = NetworkError(f"{self._target.host} was not asked")
        for attempt in range(TRIES):
            if attempt:
                await self._clock.sleep(2.0 ** (attempt - 1))
            try:
                asking = self._client.request(method, url, headers=headers, content=data, bare=bare)
                async with asking as got:
                    body = await got.aread()
                    if got.status_code < 400:
                        return got
                    trouble = _refused(got, body, self._target)
                    if got.status_code < 500 and got.status_code not in (408, 429):
                        raise _Final(trouble)
            except NetworkError as error:
                trouble = error
            except _Final as error:
                raise error.reason from None
        raise trouble

    def _next_place(self, reply: httpx.Response, *, redirected: bool = False) -> str:
        """Where the next part goes: absolute, or relative to the registry."""
        given = reply.headers.get("docker-upload-location", "")
        if not given and not redirected and reply.status_code != 307:
            given = reply.headers.get("location", "")
        if not given:
            return ""
        place = str(reply.url.join(given))
        require_secure(place, self._insecure)
        return place


class _Final(Exception):
    """A refusal that trying again will not change."""

    def __init__(self, reason: FtmanError):
        super().__init__(reason.message)
        self.reason = reason


def _refused(reply: httpx.Response, body: bytes, target: ModelName) -> FtmanError:
    text = printable(body[:200].decode("utf-8", "replace")).strip()
    return NetworkError(
        f"{target.host} answers {reply.status_code} to {reply.request.method}: {text}",
        code="push_refused",
    )

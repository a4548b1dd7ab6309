"""The bad registry: an HTTP server in a thread that serves files as well or as badly as told.

Every path has a script: behaviours for its first, second, ... request; the last one stays.

  ok                  ranges, ETag, Content-Length: as it should be
  slow:N              N bytes per second
  cut@N               the connection closes after N bytes of each answer
  flip@N              the byte at offset N of the file is another one
  no-range            200 with the whole file, whatever Range says
  416, 403, 404, 500  that status; 429:N and 503:N with Retry-After N
  etag:TEXT           another ETag than before
  html                200 text/html
  loop                redirects to itself
  gzip                Content-Encoding: gzip
  wrong-length        a Content-Length that is too large by one
  wrong-content-range a Content-Range shifted by one
  close, stall        headers, then the connection closes, or nothing more
  to:URL              302 to another place
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
REASONS = {200: "OK", 206: "Partial Content", 302: "Found", 304: "Not Modified"}


class Served(Protocol):
    """What can be served: bytes, or something that only looks like them."""

    def __len__(self) -> int: ...
    def __getitem__(self, key: slice, /) -> bytes: ...


class SparseFile:
    """A file of any size whose body is zeros behind a header; the body never exists in memory.

    Its digest is made up: it can be read by ranges, not verified.
    """

    def __init__(self, header: bytes, size: int):
        self.header = header
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice, /) -> bytes:
        start, end, _ = key.indices(self.size)
        known = self.header[start:end]
        return known + bytes(max(0, end - start) - len(known))

    @property
    def digest(self) -> str:
        """Differs for other headers and sizes."""
        return hashlib.sha256(self.header + str(self.size).encode()).hexdigest()


class DiskFile:
    """A file of this machine, of which only what is asked for is read."""

    def __init__(self, path: Path):
        self.path = path
        found = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(1 << 24):
                found.update(piece)
        self.digest = found.hexdigest()

    def __len__(self) -> int:
        return self.path.stat().st_size

    def __getitem__(self, key: slice, /) -> bytes:
        start, end, _ = key.indices(len(self))
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(max(0, end - start))


def digest_of(data: Served) -> str:
    """Hex SHA-256; of a sparse file, one that stands for it."""
    if isinstance(data, SparseFile | DiskFile):
        return data.digest
    return hashlib.sha256(bytes(data[:])).hexdigest()


@dataclass
class Asked:
    """One request as it came in. sent: body bytes that went out."""

    path: str
    headers: dict[str, str]
    start: int
    end: int
    sent: int


class BadHub:
    """Serves on a free loopback port while used as a context manager."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.scripts: dict[str, list[str]] = {}
        self.asked: list[Asked] = []
        self._count: dict[str, int] = defaultdict(int)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.port = 0

    def __enter__(self) -> BadHub:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def add(self, path: str, data: Served, *script: str) -> str:
        """Serve `data` under `path`; returns its URL."""
        self.files[path] = data
        self.scripts[path] = list(script) or ["ok"]
        return self.url + path

    def script(self, path: str, *script: str) -> None:
        """Change how a path behaves from now on."""
        self.scripts[path] = list(script)
        self._count[path] = 0

    def add_repo(self, repo: str, files: Mapping[str, Served], commit: str = COMMIT) -> None:
        """Serve a model repository the way the hub does: metadata and resolve URLs."""
        siblings = []
        for name, data in files.items():
            self.add(f"/{repo}/resolve/{commit}/{name}", data)
            item: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
            if name.endswith((".gguf", ".safetensors")):
                item["lfs"] = {"sha256": digest_of(data), "size": len(data), "pointerSize": 130}
            else:
                head = f"blob {len(data)}\0".encode()
                item["blobId"] = hashlib.sha1(head + data[:]).hexdigest()
            siblings.append(item)
        info = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []}
        body = json.dumps(info).encode()
        for revision in ("main", commit):
            self.add(f"/api/models/{repo}/revision/{revision}", body)

    def add_folder(self, repo: str, folder: Path) -> None:
        """Serve the files of a folder as a model repository."""
        self.add_repo(repo, {path.name: DiskFile(path) for path in sorted(folder.iterdir())})

    def bytes_sent(self, path: str) -> int:
        """Body bytes that went out for one path, all requests together."""
        return sum(item.sent for item in self.asked if item.path == path)

    def requests(self, path: str) -> list[Asked]:
        """Requests for one path."""
        return [item for item in self.asked if item.path == path]

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        target = head[0].split(" ")[1]
        headers = {
            key.strip().lower(): value.strip()
            for key, _, value in (line.partition(":") for line in head[1:] if line)
        }
        path = unquote(urlsplit(target).path)
        script = self.scripts.get(path, ["404"])
        behaviour = script[min(self._count[path], len(script) - 1)]
        self._count[path] += 1
        answer = _Answer(self.files.get(path, b""), behaviour, headers)
        asked = Asked(path, headers, answer.start, answer.end, 0)
        self.asked.append(asked)
        writer.write(answer.head())
        await writer.drain()
        async for chunk in answer.chunks():
            writer.write(chunk)
            await writer.drain()
            asked.sent += len(chunk)
        if answer.stalls:
            await asyncio.sleep(60)
        return not answer.closes


class _Answer:
    """One response: what the behaviour makes of a request."""

    def __init__(self, data: Served, behaviour: str, headers: dict[str, str]):
        self._kind, _, self._value = behaviour.replace("@", ":", 1).partition(":")
        self._data = data
        self.etag = f'"{digest_of(data)[:16]}"'
        if self._kind == "etag":
            self.etag = f'"{self._value}"'
        self.start, self.end = 0, len(data)
        self.status = int(self._kind) if self._kind.isdigit() else 200
        wanted = headers.get("range", "")
        stale = headers.get("if-range", self.etag) != self.etag
        if wanted and self.status == 200 and self._kind != "no-range" and not stale:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            self.start = int(first)
            self.end = min(int(last) + 1 if last else len(data), len(data))
            self.status = 206 if self.start < len(data) else 416
        if self._kind in ("html", "gzip"):
            self.status = 200
        if self._kind in ("loop", "to"):
            self.status = 302
        self.closes = self._kind in ("cut", "close", "wrong-length")
        self.stalls = self._kind == "stall"

    def _body(self) -> bytes:
        if self._kind == "html":
            return b"<html>please log in</html>"
        if self.status not in (200, 206):
            return b""
        return self._data[self.start : self.end]

    def head(self) -> bytes:
        """Status line and headers."""
        length = len(self._body()) + (self._kind == "wrong-length")
        lines = [f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Trouble')}"]
        lines += [f"Content-Length: {length}", f"ETag: {self.etag}", "Accept-Ranges: bytes"]
        lines.append(f"Content-Type: {'text/html' if self._kind == 'html' else 'application/x'}")
        if self.status == 206:
            shift = 1 if self._kind == "wrong-content-range" else 0
            span = f"{self.start + shift}-{self.end - 1 + shift}"
            lines.append(f"Content-Range: bytes {span}/{len(self._data)}")
        if self.status == 416:
            lines.append(f"Content-Range: bytes */{len(self._data)}")
        if self._kind == "gzip":
            lines.append("Content-Encoding: gzip")
        if self._kind in ("429", "503") and self._value:
            lines.append(f"Retry-After: {self._value}")
        if self._kind == "loop":
            lines.append("Location: ?again")
        if self._kind == "to":
            lines.append(f"Location: {self._value}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def chunks(self):  # type: ignore[no-untyped-def]
        """The body, at the pace and with the faults asked for."""
        body = self._body()
        if self._kind in ("close", "stall"):
            return
        if self._kind == "cut":
            body = body[: int(self._value)]
        if self._kind == "flip":
            at = int(self._value) - self.start
            if 0 <= at < len(body):
                body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        step = 1 << 16
        if self._kind == "slow":
            step = max(1, int(self._value) // 50)
        for offset in range(0, len(body), step):
            yield body[offset : offset + step]
            if self._kind == "slow":
                await asyncio.sleep(0.02)

"""A registry that speaks Ollama's protocol, in a thread: manifests, ranges, tokens, pushes.

Knobs: `needs_token` asks for a Bearer token whose request must be signed by a known key; `direct`
redirects blobs and upload parts to another path of the same server; `flaky` is how many PATCHes
fail with 503 first; `scopes` lists what tokens were asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ftman.catalog import manifest as kinds
from tests.fakes.ed25519 import verify

PREFIX = "application/vnd.ollama.image."
TOKEN = "token-of-the-registry"
_EMPTY = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()


def digest_of(data: bytes) -> str:
    """ "sha256:<hex>"."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


class OllamaRegistry:
    """Serves on a free loopback port while used as a context manager."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, bytearray] = {}
        self.needs_token = False
        self.direct = False
        self.flaky = 0
        self.realm_host = ""
        self.scopes: list[str] = []
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    def __enter__(self) -> OllamaRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def host(self) -> str:
        """host:port, as it stands in model names."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def publish(self, name: str, weights: bytes, **texts: Any) -> dict[str, Any]:
        """Publish `namespace/model:tag`. texts: template, system, params, messages, license, or
        `extra` = [(kind, bytes)]; returns the manifest."""
        layers = [self._layer(PREFIX + "model", weights)]
        for kind, value in texts.items():
            for item in value if kind in ("license", "extra") else [value]:
                what, data = item if kind == "extra" else (kind, item)
                raw = data if isinstance(data, bytes) else _text(data)
                layers.append(self._layer(PREFIX + what, raw))
        config = self._layer(kinds.CONFIG_TYPE, _text({"model_format": "gguf", "rootfs": {}}))
        manifest = {"schemaVersion": 2, "mediaType": kinds.MANIFEST_TYPE, "config": config}
        manifest["layers"] = layers
        self.manifests[name] = json.dumps(manifest).encode()
        return manifest

    def layers(self, name: str) -> dict[str, bytes]:
        """What was published or pushed, by the last word of its media type."""
        value = json.loads(self.manifests[name])
        found = [*value["layers"], value["config"]]
        return {item["mediaType"].rpartition(".")[2]: self.blobs[item["digest"]] for item in found}

    def _layer(self, media_type: str, data: bytes) -> dict[str, Any]:
        self.blobs[digest_of(data)] = data
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(_Handler):
            hub = registry

        return Handler


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    hub: OllamaRegistry

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_GET

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        self.hub.asked.append((self.command, self.path, headers))
        if parts.path == "/token":
            return self._token(headers)
        if parts.path.startswith("/direct/"):
            return self._direct(parts.path.removeprefix("/direct/"), headers, body)
        if self.hub.needs_token and headers.get("authorization") != f"Bearer {TOKEN}":
            realm = f"http://{self.hub.realm_host or self.hub.host}/token"
            scope = "repository:x:pull,push"
            challenge = f'Bearer realm="{realm}",service="registry",scope="{scope}"'
            return self._reply(401, b"", {"WWW-Authenticate": challenge})
        _, _, namespace, model, kind, *rest = parts.path.split("/")
        name = f"{namespace}/{model}"
        if kind == "manifests":
            return self._manifest(f"{name}:{rest[0]}", body)
        if rest[0] == "uploads":
            return self._upload("/".join(rest[1:]), parse_qs(parts.query), body)
        return self._blob(rest[0], headers)

    def _token(self, headers: dict[str, str]) -> None:
        self.hub.scopes.append(parse_qs(urlsplit(self.path).query)["scope"][0])
        key, _, signature = headers.get("authorization", "").partition(":")
        signed = f"GET,http://{self.headers['host']}{self.path},{_EMPTY}".encode()
        public = base64.b64decode(key)[-32:]
        if not verify(public, signed, base64.b64decode(signature)):
            return self._reply(403, b"bad signature")
        return self._reply(200, json.dumps({"token": TOKEN}).encode())

    def _manifest(self, name: str, body: bytes) -> None:
        if self.command == "PUT":
            self.hub.manifests[name] = body
            return self._reply(201)
        data = self.hub.manifests.get(name)
        return self._reply(404, b"not found") if data is None else self._reply(200, data)

    def _blob(self, digest: str, headers: dict[str, str]) -> None:
        data = self.hub.blobs.get(digest)
        if data is None:
            return self._reply(404)
        if self.hub.direct and self.command == "GET":
            return self._reply(307, b"", {"Location": f"/direct/{digest}"})
        return self._ranged(data, headers)

    def _direct(self, what: str, headers: dict[str, str], body: bytes) -> None:
        if "authorization" in headers and self.command == "PUT":
            return self._reply(400, b"no authorization here")
        if self.command == "PUT":
            self.hub.uploads[what] += body
            return self._reply(200)
        return self._ranged(self.hub.blobs[what], headers)

    def _ranged(self, data: bytes, headers: dict[str, str]) -> None:
        wanted = headers.get("range", "")
        if not wanted or self.command == "HEAD":
            return self._reply(200, data)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        span = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        return self._reply(206, data[start:end], span)

    def _upload(self, place: str, query: dict[str, list[str]], body: bytes) -> None:
        uploads = self.hub.uploads
        where = f"{self.path.partition('/uploads/')[0]}/uploads/{place or len(uploads) + 1}"
        if self.command == "POST":
            uploads[str(len(uploads) + 1)] = bytearray()
            return self._reply(202, b"", {"Docker-Upload-Location": where})
        if self.command == "PATCH":
            if self.hub.flaky:
                self.hub.flaky -= 1
                return self._reply(503, b"busy")
            if self.hub.direct:
                headers = {"Location": f"/direct/{place}", "Docker-Upload-Location": where}
                return self._reply(307, b"", headers)
            uploads[place] += body
            return self._reply(202, b"", {"Docker-Upload-Location": where})
        data = bytes(uploads[place])
        if digest_of(data) != query["digest"][0]:
            return self._reply(400, b"digest mismatch")
        self.hub.blobs[digest_of(data)] = data
        return self._reply(201)

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

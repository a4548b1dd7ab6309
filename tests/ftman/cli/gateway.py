"""A small stand-in for the manager: scripted replies over real HTTP, requests remembered."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SHOWN = {
    "license": "Apache License\nVersion 2.0\n\nmore\n",
    "modelfile": "# Modelfile\nFROM m",
    "parameters": 'stop                           "<|im_end|>"\ntemperature                    0.2',
    "template": "{{ .Prompt }}",
    "system": "Be kind.",
    "details": {"family": "llama", "quantization_level": "Q4_1", "parameter_size": "134.5M"},
    "model_info": {
        "general.architecture": "llama",
        "general.parameter_count": 134515008,
        "llama.context_length": 2048,
        "llama.embedding_length": 576,
        "tokenizer.ggml.tokens": ["a", "b", "c", "d"],
    },
    "tensors": [{"name": "output_norm.weight", "type": "F32", "shape": [576]}],
    "capabilities": ["completion"],
    "modified_at": "2026-08-01T15:04:05.123456789+02:00",
    "ft": {"reference_path": ["q6_k"], "notes": []},
}
FINAL = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 4_860_000_000,
    "load_duration": 113_000_000,
    "prompt_eval_count": 26,
    "prompt_eval_duration": 130_000_000,
    "eval_count": 298,
    "eval_duration": 4_500_000_000,
}


@dataclass
class Reply:
    """What to answer. A callable body is a generator of NDJSON objects; cut: end without EOF."""

    body: Any = None
    status: int = 200
    cut: bool = False


def answer_stream(*words: str, key: str = "response") -> list[dict[str, Any]]:
    """The objects of one streamed answer."""

    def item(word: str) -> dict[str, Any]:
        if key == "response":
            return {"response": word}
        return {"message": {"role": "assistant", "content": word}}

    return [*({**item(word), "done": False} for word in words), {**item(""), **FINAL}]


@dataclass
class Gateway:
    """Routes to replies; `requests` holds (method, path, body) in order."""

    server_header: str = "ft/0.1.0"
    routes: dict[tuple[str, str], Reply | Callable[[Any], Reply]] = field(default_factory=dict)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""
    broken: threading.Event = field(default_factory=threading.Event)

    def on(self, method: str, path: str, reply: Reply | Callable[[Any], Reply] | Any) -> None:
        """Answer that route with `reply` (a Reply, or the JSON body itself)."""
        plain = isinstance(reply, Reply) or callable(reply)
        self.routes[method, path] = reply if plain else Reply(reply)

    def bodies(self, path: str) -> list[Any]:
        """Bodies sent to a path."""
        return [body for _, where, body in self.requests if where.partition("?")[0] == path]

    def find(self, method: str, path: str, body: Any) -> Reply:
        """The scripted reply."""
        self.requests.append((method, path, body))
        bare = path.partition("?")[0]
        if bare.startswith("/api/blobs/"):
            bare = "/api/blobs/"
        found = self.routes.get((method, bare))
        if found is None:
            return Reply({"error": f"no route {method} {bare}"}, 404)
        return found if isinstance(found, Reply) else found(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes early is no news; the tests see a broken connection anyway."""


@contextlib.contextmanager
def running(gateway: Gateway) -> Iterator[Gateway]:
    """Serve on a free loopback port."""
    gateway.on("GET", "/", Reply(b"Ollama is running"))
    gateway.on("GET", "/api/ft/status", {"version": "0.1.0"})
    server = _Server(("127.0.0.1", 0), _handler(gateway))
    gateway.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(served: Gateway) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"gateway": served})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gateway: Gateway

    def version_string(self) -> str:
        return self.gateway.server_header

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle_any(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(data) if data else None
        except ValueError:
            body = data
        reply = self.gateway.find(self.command, self.path, body)
        if callable(reply.body) or isinstance(reply.body, list):
            self._stream(reply)
            return
        content = reply.body if isinstance(reply.body, bytes) else b""
        if reply.body is not None and not isinstance(reply.body, bytes):
            content = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _stream(self, reply: Reply) -> None:
        items = reply.body() if callable(reply.body) else reply.body
        self.send_response(reply.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for item in items:
                line = json.dumps(item, ensure_ascii=False).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            if not reply.cut:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.gateway.broken.set()
        self.close_connection = True

    do_GET = do_POST = do_DELETE = do_HEAD = handle_any

"""A manager inside the test process: real service and gateway, real sockets, a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
import xxhash

from ftman.calibration import Calibration
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model, ModelDetails, NewModel
from ftman.chat.types import Message
from ftman.config import Config, EngineSettings, Paths
from ftman.gateway.access import AccessRules
from ftman.gateway.app import Gateway
from ftman.gateway.serve_process import uvicorn_settings
from ftman.names import parse_name
from ftman.pull.index import Index
from ftman.service import Service
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.fakes.tiny_models import tiny_vocabulary, write_tokenizer

T = TypeVar("T")
GO_TEMPLATE = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n"
)


def ids_of(text: str) -> tuple[int, ...]:
    """Token ids whose text is `text`, one per byte-level character."""
    tokens, _ = tiny_vocabulary()
    shown = {" ": "Ġ", "\n": "Ċ"}
    return tuple(tokens.index(shown.get(ch, ch)) for ch in text)


@dataclass(frozen=True)
class Tiny:
    """What to install. Defaults: a small chat model with a Jinja ChatML template."""

    name: str = "tiny:latest"
    template: str = ""
    system: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    capabilities: tuple[str, ...] = ("completion",)
    context: int = 512
    licenses: tuple[str, ...] = ()
    seed: int = 0
    jinja: str = ""
    info: dict[str, Any] = field(default_factory=dict)


def make_config(home: Path, **changes: Any) -> Config:
    """A configuration in a folder of the test's own."""
    engine = changes.pop("engine", EngineSettings(num_parallel=2, threads=1, adopt=False))
    return Config(Paths(home, home / "models"), host="127.0.0.1", port=0, engine=engine, **changes)


def install(paths: Paths, tiny: Tiny = Tiny()) -> Model:
    """Install a model that the scripted engine can "load": tokenizer and texts are real."""
    staged = paths.ftw / f"staged-{tiny.seed}"
    staged.mkdir(parents=True)
    write_tokenizer(staged)
    if tiny.jinja:
        (staged / "chat_template.jinja").write_text(tiny.jinja, "utf-8")
    (staged / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (staged / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    tensors = [{"name": "token_embd.weight", "type": "F32", "shape": [64, 320]}]
    info = {
        "general.architecture": "llama",
        "general.name": "hidden",
        "general.parameter_count": 1000,
        "llama.context_length": tiny.context,
        "tokenizer.ggml.tokens": ["a", "b"],
        **tiny.info,
    }
    source = {"kind": "gguf", "model_info": info, "tensors": tensors, "sources": []}
    (staged / "source.json").write_text(json.dumps(source))
    weights = bytes([tiny.seed]) * 4096
    (staged / "weights-00000.ftw").write_bytes(weights)
    others = [
        {
            "name": path.name,
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(staged.iterdir())
        if path.suffix != ".ftw"
    ]
    shard: dict[str, Any] = {"file": "weights-00000.ftw", "bytes": 4096}
    shard["blocks"] = [xxhash.xxh3_128_hexdigest(weights)]
    index = {"format": "ftw", "version": 1, "family": "llama", "shards": [shard]}
    data = json.dumps(index | {"files": others, "tensors": [], "banks": []}).encode()
    ftw_id = hashlib.sha256(data).hexdigest()
    (staged / "index.json").write_bytes(data)
    if (paths.ftw / ftw_id).exists():  # an engine may still hold it after its name was deleted
        shutil.rmtree(staged)
    else:
        staged.rename(paths.ftw / ftw_id)
    new = NewModel(
        ftw_id=ftw_id,
        details=ModelDetails("gguf", "llama", ("llama",), "1.2K", "F32", tiny.context, 64),
        model_info=info,
        capabilities=tiny.capabilities,
        eos_ids=(2,),
        load_bytes=4096,
        kv_bytes_per_token=64,
        template=tiny.template,
        system=tiny.system,
        parameters=tiny.parameters,
        licenses=tiny.licenses,
        messages=tiny.messages,
    )
    return Catalog(paths, lambda _: None).commit(parse_name(tiny.name), new)


NOTHING_MEASURED = (sys.executable, "-S", "-c", "print('{\"profile\": {}}')")
"""In place of the seconds that a real measurement takes."""


class Manager:
    """A running manager. `on_loop` runs a coroutine function where the service lives."""

    def __init__(self, config: Config, launcher: FakeLauncher, rules: AccessRules, **options: Any):
        self.config = config
        self.launcher = launcher
        self._rules = rules
        self._options = options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self.error: BaseException | None = None

    def __enter__(self) -> Manager:
        self._thread.start()
        assert self._ready.wait(20)
        if self.error is not None:
            raise self.error
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._loop.call_soon_threadsafe(setattr, self._server, "should_exit", True)
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def on_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the manager's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(20)

    def raw(self, data: bytes = b"") -> socket.socket:
        """A raw connection, with some bytes sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(data)
        return connection

    def engine_runs(self) -> int:
        """Leases in use, over all engines."""

        async def count() -> int:
            return sum(engine.in_use for engine in self.service.running())

        return self.on_loop(count)

    def leases_asked_for(self) -> int:
        """Requests that hold or wait for an engine."""

        async def count() -> int:
            return len(self.service._supervisor._requests)

        return self.on_loop(count)

    def gateway_requests(self) -> list[str]:
        """Ids of the requests that are being answered."""

        async def ids() -> list[str]:
            return self.gateway.under_way()

        return self.on_loop(ids)

    async def cut(self) -> None:
        """What a shutdown does to streams at the end of its patience."""
        self.gateway.cut()

    async def _main(self) -> None:
        try:
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
            self._loop = asyncio.get_running_loop()
            rates = Calibration(self.config.paths, self.config.engine, NOTHING_MEASURED)
            self.service = Service(
                self.config, launcher=self.launcher, index=Index([]), calibration=rates
            )
            self.gateway = Gateway(self.service, self._rules, **self._options)
            self._server = uvicorn.Server(uvicorn_settings(self.gateway, grace_s=5))
            await self.service.start()
            task = asyncio.ensure_future(self._server.serve(sockets=[listener]))
            while not self._server.started and not task.done():
                await asyncio.sleep(0.005)
        except BaseException as error:
            self.error = error
            self._ready.set()
            raise
        self._ready.set()
        try:
            await task
        finally:
            await self.service.close()


@contextlib.contextmanager
def managing(
    home: Path,
    script: FakeScript | list[FakeScript] | None = None,
    models: tuple[Tiny, ...] = (Tiny(),),
    rules: AccessRules | None = None,
    config: Config | None = None,
    **options: Any,
) -> Iterator[Manager]:
    """A manager with models installed."""
    config = config or make_config(home)
    for tiny in models:
        install(config.paths, tiny)
    with Manager(
        config, FakeLauncher(script or FakeScript()), rules or AccessRules(), **options
    ) as manager:
        yield manager


def lines_of(reply: httpx.Response) -> list[dict[str, Any]]:
    """NDJSON objects of a reply; every line must end with a newline."""
    assert reply.text.endswith("\n")
    return [json.loads(line) for line in reply.text.splitlines()]


def frames_of(reply: httpx.Response) -> list[Any]:
    """Data of SSE frames, "[DONE]" as text."""
    found: list[Any] = []
    for frame in reply.text.split("\n\n"):
        if frame.startswith("data: "):
            data = frame[6:]
            found.append(data if data == "[DONE]" else json.loads(data))
    return found

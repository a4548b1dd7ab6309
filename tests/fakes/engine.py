"""A scripted engine: a real program that speaks the engine protocol without torch, and can lie.

As a program it takes the argv of `python -m ftengine serve`. Its script is a FakeScript (script.py
lists the knobs) as JSON, from `--fake-script JSON`, else from the environment variable
FT_FAKE_ENGINE. In tests:

    supervisor = Supervisor(config, clock, FakeLauncher(FakeScript(tokens=(5, 6, 7))))

FakeLauncher takes one script for every start, a list (first start, second start, ..., the last
one for all later starts) or a function from EngineSpec to script.

/metrics reports fake_generations_total, fake_aborted_total, fake_running.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # started by its path, possibly from another folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ftengine.protocol import (
    PROTOCOL_VERSION,
    EmbedRequest,
    EngineInfo,
    ErrorEvent,
    ExpertStats,
    FinishEvent,
    GenerateRequest,
    Health,
    Hello,
    MemoryRequest,
    MemoryState,
    ProgressEvent,
    ProtocolError,
    TokenEvent,
    TokenLogprob,
    decode,
    encode,
    encode_line,
)
from ftengine.waiting import wait_for_order
from tests.fakes.script import FakeScript
from tests.fakes.vectors import reply_to

if TYPE_CHECKING:
    from ftman.supervisor.policy_events import EngineSpec

HUGE_LINE_BYTES = 1_000_000_000
_PROGRAM = (sys.executable, "-S", str(Path(__file__).resolve()))


Scripts = FakeScript | Sequence[FakeScript] | Callable[["EngineSpec"], FakeScript]


@dataclass
class FakeLauncher:
    """A Launcher that starts this file. `launched` lists the specs in the order of their starts."""

    script: Scripts = field(default_factory=FakeScript)
    launched: list[EngineSpec] = field(default_factory=list)
    waits: bool = False
    """Whether a process is prepared for the next start."""

    def waiting(self) -> list[str]:
        return [*_PROGRAM, "wait"] if self.waits else []

    def command(self, spec: EngineSpec, address: str, token_file: Path) -> list[str]:
        self.launched.append(spec)
        argv = [*_PROGRAM, "serve"]
        argv += ["--ftw", str(spec.ftw_path), "--address", address]
        argv += ["--context", str(spec.context_tokens), "--parallel", str(spec.num_parallel)]
        argv += ["--device", spec.device, "--compute", spec.compute]
        argv += ["--threads", str(spec.threads), "--token-file", str(token_file)]
        return [*argv, "--fake-script", self._script(spec).to_json()]

    def _script(self, spec: EngineSpec) -> FakeScript:
        if isinstance(self.script, FakeScript):
            return self.script
        if callable(self.script):
            return self.script(spec)
        return self.script[min(len(self.launched), len(self.script)) - 1]


@dataclass
class _Options:
    ftw: str = ""
    address: str = "tcp:127.0.0.1:0"
    context: int = 2048
    parallel: int = 4
    device: str = "cpu"
    compute: str = "bfloat16"
    threads: int = 1
    token_file: str = ""
    adopt: bool = False
    fake_script: str = ""
    cpu_target: str = ""
    kv_bytes: int = 0

    @staticmethod
    def parse(argv: list[str]) -> _Options:
        options = _Options()
        words = iter(argv)
        if next(words, "") != "serve":
            raise SystemExit("the one verb is: serve")
        for word in words:
            name = word.removeprefix("--").replace("-", "_")
            if not hasattr(options, name):
                raise SystemExit(f"unknown option {word}")
            if name == "adopt":
                options.adopt = True
            else:
                setattr(options, name, type(getattr(options, name))(next(words)))
        return options


class Engine:
    """The state that all connections share."""

    def __init__(self, options: _Options, script: FakeScript):
        self.options = options
        self.script = script
        self.token = Path(options.token_file).read_text() if options.token_file else ""
        self.state = "loading"
        self.error: str | None = None
        self.loaded = 0
        self.running = 0
        self.generations = 0
        self.aborted = 0
        self.slots = 16
        self.step_at: float | None = None
        self.connections = 0
        self.last_seen: float | None = None
        self.lock = threading.Lock()

    def load(self) -> None:
        script = self.script
        if script.die_at == "load":
            die(script)
        for step in range(script.load_steps):
            time.sleep(script.load_s / script.load_steps)
            self.loaded = script.total_bytes * (step + 1) // script.load_steps
        if script.load_error:
            sys.stderr.write(f"{script.load_error}\n")
            self.error, self.state = script.load_error, "failed"
            self.say()
            time.sleep(0.2)
            os._exit(1)
        self.state = "ready"
        self.say()

    def say(self) -> None:
        if self.script.lie != "hello_half":  # which has closed it
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), encode_line(self.health()))

    def health(self) -> Health:
        age = None if self.step_at is None else time.monotonic() - self.step_at
        total = self.script.total_bytes
        return Health(self.state, self.loaded, total, self.running, 0, age, self.error)

    def info(self) -> EngineInfo:
        major, minor = PROTOCOL_VERSION
        options = self.options
        return EngineInfo(
            protocol=(major + 98, minor) if self.script.lie == "info_version" else (major, minor),
            version="fake",
            ftw_id="f" * 64 if self.script.lie == "other_model" else Path(options.ftw).name,
            family="fake",
            device=options.device,
            compute=options.compute,
            context_tokens=options.context,
            max_sequences=options.parallel,
            vocab_size=1000,
            weights_bytes=self.script.total_bytes,
            kv_bytes=0,
            num_experts=0,
            kernels={},
            pid=os.getpid(),
            started_wall_s=time.time(),
            experts=ExpertStats("split", self.slots, 8, 64, 4096, 84, 16, 7, 9, 0, 7 * 4096),
        )

    def resize(self, request: MemoryRequest) -> MemoryState | ErrorEvent:
        if request.expert_slots is not None and request.expert_slots > 64:
            return ErrorEvent("capacity", f"{request.expert_slots} slots asked for, 64 fit")
        self.slots = self.slots if request.expert_slots is None else request.expert_slots
        return MemoryState(self.slots, 4096, request.kv_bytes or 1 << 20, 8, 1 << 30, 1 << 20)

    def metrics(self) -> bytes:
        return (
            f"fake_generations_total {self.generations}\nfake_aborted_total {self.aborted}\n"
            f"fake_running {self.running}\n"
        ).encode()

    def drain(self) -> None:
        if self.script.ignore_sigterm:
            return
        self.state = "draining"

        def leave() -> None:
            deadline = time.monotonic() + self.script.drain_s
            while self.running and time.monotonic() < deadline:
                time.sleep(0.005)
            os._exit(0)

        threading.Thread(target=leave, daemon=True).start()

    def leave_when_orphaned(self) -> None:
        limit = self.script.orphan_s
        if limit < 0:
            limit = 30.0 if self.options.adopt else 5.0
        while True:
            time.sleep(min(0.2, limit))
            seen = self.last_seen
            idle = self.running == 0 and self.connections == 0
            if idle and seen is not None and time.monotonic() - seen > limit:
                os._exit(0)


def die(script: FakeScript) -> None:
    if script.last_words:
        sys.stderr.write(f"{script.last_words}\n")
    if script.die == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif script.die == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    else:
        os._exit(int(script.die.removeprefix("exit:")))
    time.sleep(10)  # the signal comes


class Connection:
    """One HTTP/1.1 connection, one thread."""

    def __init__(self, engine: Engine, sock: socket.socket):
        self.engine = engine
        self.sock = sock
        self.buffer = b""

    def serve(self) -> None:
        engine = self.engine
        with engine.lock:
            engine.connections += 1
        try:
            while True:
                request = self._read_request()
                if request is None:
                    return
                engine.last_seen = time.monotonic()
                self._route(*request)
        except OSError:
            pass
        finally:
            with engine.lock:
                engine.connections -= 1
                engine.last_seen = time.monotonic()
            self.sock.close()

    def _read_request(self) -> tuple[str, dict[str, str], bytes] | None:
        while b"\r\n\r\n" not in self.buffer:
            if not self._more():
                return None
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self.buffer) < length:
            if not self._more():
                return None
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return " ".join(first.split()[:2]), headers, body

    def _more(self) -> bool:
        data = self.sock.recv(1 << 20)
        self.buffer += data
        return bool(data)

    def _route(self, target: str, headers: dict[str, str], body: bytes) -> None:
        engine, script = self.engine, self.engine.script
        if engine.token and headers.get("authorization") != f"Bearer {engine.token}":
            self._answer(401, encode(ErrorEvent("unauthorized", "wrong token")))
        elif target == "GET /health":
            data = b"{}}" if script.lie == "health_garbage" else encode(engine.health())
            self._answer(200 if engine.state == "ready" else 503, data)
        elif target == "GET /info":
            self._answer(200, encode(engine.info()))
            if script.die_at in ("ready", "idle"):
                time.sleep(0.05 if script.die_at == "idle" else 0)
                die(script)
        elif target == "GET /metrics":
            self._answer(200, engine.metrics())
        elif target == "POST /memory":
            found = engine.resize(decode(MemoryRequest, body))
            self._answer(400 if isinstance(found, ErrorEvent) else 200, encode(found))
        elif target == "POST /generate":
            self._generate(body)
        elif target == "POST /embed":
            self._embed(body)
        else:
            self._answer(404, encode(ErrorEvent("not_found", f"no route {target}")))

    def _answer(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
        self.sock.sendall(head.encode() + body)

    def _refuses(self) -> bool:
        engine, script = self.engine, self.engine.script
        if script.refuse or engine.state != "ready" or script.lie == "not_ready":
            code = "queue_full" if script.refuse else "loading"
            reason = script.refuse or f"the engine is {engine.state}"
            self._answer(503, encode(ErrorEvent(code, reason, True)))
            return True
        return False

    def _decoded(self, kind: type, body: bytes) -> Any:
        try:
            request = decode(kind, body)
        except ProtocolError as error:
            self._answer(400, encode(ErrorEvent("bad_request", str(error))))
            return None
        if self.engine.script.request_log:
            route = "/embed" if kind is EmbedRequest else "/generate"
            line = json.dumps({"route": route, "request": json.loads(body)}) + "\n"
            with self.engine.lock, Path(self.engine.script.request_log).open("a") as log:
                log.write(line)
        return request

    def _embed(self, body: bytes) -> None:
        request = None if self._refuses() else self._decoded(EmbedRequest, body)
        if request is None:
            return
        longest, context = max(map(len, request.inputs)), self.engine.options.context
        if longest > context:
            text = f"an input has {longest} tokens and the context holds {context}"
            self._answer(400, encode(ErrorEvent("context_length_exceeded", text)))
            return
        script = self.engine.script
        self._answer(200, encode(reply_to(request, script.embed_size, script.embed_nan)))

    def _generate(self, body: bytes) -> None:
        engine, script = self.engine, self.engine.script
        request = None if self._refuses() else self._decoded(GenerateRequest, body)
        if request is None:
            return
        if request.constraint is not None and script.bad_constraint:
            self._answer(400, encode(ErrorEvent("bad_constraint", script.bad_constraint)))
            return
        if len(request.token_ids) >= engine.options.context:
            text = f"{len(request.token_ids)} tokens do not fit {engine.options.context}"
            self._answer(400, encode(ErrorEvent("prompt_too_long", text)))
            return
        with engine.lock:
            engine.running += 1
            engine.generations += 1
        try:
            Generation(self, request).run()
        except OSError:
            engine.aborted += 1
            raise
        finally:
            with engine.lock:
                engine.running -= 1

    def chunk(self, data: bytes) -> None:
        self.sock.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def pause(self, seconds: float) -> None:
        """Wait, but notice at once when the other side closes."""
        if select.select([self.sock], [], [], seconds)[0] and not self.sock.recv(
            1, socket.MSG_PEEK
        ):
            raise ConnectionAbortedError


class Generation:
    """One streamed answer."""

    def __init__(self, connection: Connection, request: GenerateRequest):
        self.connection = connection
        self.request = request
        self.engine = connection.engine
        self.script = connection.engine.script
        self.due_at = time.monotonic()

    def run(self) -> None:
        if self.script.die_at == "prefill":
            die(self.script)
        if self.script.lie == "http_garbage":
            self.connection.sock.sendall(b"\0\1\2 not http\r\n\r\n")
            self.connection.sock.close()
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
        self.connection.sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        total = len(self.request.token_ids)
        for step in range(self.script.prompt_events):
            self.send(ProgressEvent(total * (step + 1) // self.script.prompt_events, total))
        sent, reason, stop_id = self.tokens()
        if self.script.lie not in ("no_finish",):
            self.send(self.finish(sent, reason, stop_id))
        self.connection.sock.sendall(b"0\r\n\r\n")

    def tokens(self) -> tuple[int, str, int | None]:
        """Send the tokens; returns their number and why they ended."""
        script, request = self.script, self.request
        answer = script.answer_to(tuple(request.token_ids))
        source = request.token_ids if answer is None else answer
        room = self.engine.options.context - len(request.token_ids)
        limit = room if request.max_tokens < 0 else min(room, request.max_tokens)
        sent = 0
        while True:
            self.misbehave(sent)
            if answer is not None and sent == len(source):
                return sent, "stop", None
            if sent >= limit:
                return sent, "length", None
            token = source[sent % len(source)]
            if token in request.stop_token_ids:
                return sent, "stop", token
            self.connection.pause(self.wait_s())
            self.send(TokenEvent((token,), self.logprobs(token)))
            self.engine.step_at = time.monotonic()
            sent += 1

    def wait_s(self) -> float:
        """Seconds until the next token is due."""
        rate = self.script.tokens_per_s
        if not rate:
            return self.script.token_s
        self.due_at += self.engine.running / rate
        return max(0.0, self.due_at - time.monotonic())

    def logprobs(self, token: int) -> tuple[TokenLogprob, ...]:
        count = self.request.logprobs
        if count is None:
            return ()
        return (TokenLogprob(token, -0.5, tuple((token + i, -0.5 - i) for i in range(count))),)

    def misbehave(self, sent: int) -> None:
        script = self.script
        if script.die_at == "token" and sent >= script.die_after:
            die(script)
        if script.freeze_after is not None and sent >= script.freeze_after:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.05)  # the stop reaches this thread a moment later
        if script.stream_error and sent >= (script.hang_after or 0):
            self.send(ErrorEvent("internal", script.stream_error, True))
            self.connection.sock.sendall(b"0\r\n\r\n")
            raise ConnectionAbortedError
        if script.hang_after is not None and sent >= script.hang_after:
            while True:
                self.connection.pause(1.0)
        if sent == 1 and script.lie:
            self.lie(script.lie)

    def lie(self, kind: str) -> None:
        chunk = self.connection.chunk
        if kind == "half_line":
            chunk(b'{"type":"token","token_ids":[1')
            self.connection.sock.sendall(b"0\r\n\r\n")
            raise ConnectionAbortedError
        if kind == "huge_line":
            block = b"x" * (1 << 20)
            for _ in range(HUGE_LINE_BYTES >> 20):
                chunk(block)
        lines = {
            "garbage": b"{{{\n",
            "bad_utf8": b'{"type":"token","token_ids":[1],"x":"\xe2\x82"}\n',
            "unknown_event": b'{"type":"surprise"}\n',
            "wrong_type": b'{"type":"token","token_ids":["a"]}\n',
        }
        if kind in lines:
            chunk(lines[kind])

    def send(self, event: Any) -> None:
        self.connection.chunk(encode_line(event))

    def finish(self, sent: int, reason: str, stop_id: int | None) -> FinishEvent:
        total = len(self.request.token_ids)
        nothing = (None,) * total if self.request.prompt_logprobs else ()
        return FinishEvent(reason, total, 0, sent, 0.0, 0.001, 0.001 * sent, stop_id, nothing)


def listen(address: str) -> tuple[socket.socket, str]:
    kind, _, place = address.partition(":")
    if kind == "unix":
        server = socket.socket(socket.AF_UNIX)
        server.bind(place)
        server.listen(128)
        return server, address
    host, _, port = place.rpartition(":")
    server = socket.create_server((host, int(port)), backlog=128)
    return server, f"tcp:{host}:{server.getsockname()[1]}"


def greet(script: FakeScript, address: str) -> None:
    major, minor = PROTOCOL_VERSION
    if script.lie == "hello_version":
        major += 98
    line = encode_line(Hello(address, (major, minor), os.getpid()))
    if script.lie == "hello_garbage":
        line = b"Welcome!\n"
    if script.lie == "hello_half":
        line = line[:10]
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    if script.lie == "hello_half":
        os.close(1)


def grow(curve: tuple[tuple[float, int], ...]) -> None:
    started, held = time.monotonic(), bytearray()
    for at, size in curve:
        time.sleep(max(0.0, started + at - time.monotonic()))
        held = bytearray(b"\1") * size
    threading.Event().wait(3600 if held else 0)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments == ["wait"]:
        arguments = wait_for_order(lambda: None)
    options = _Options.parse(arguments)
    script = FakeScript.from_json(options.fake_script or os.environ.get("FT_FAKE_ENGINE", ""))
    if script.die_at == "start":
        die(script)
    engine = Engine(options, script)
    signal.signal(signal.SIGTERM, lambda *_: engine.drain())
    server, address = listen(options.address)
    greet(script, address)
    for work in (engine.load, engine.leave_when_orphaned):
        threading.Thread(target=work, daemon=True).start()
    if script.memory:
        threading.Thread(target=grow, args=(script.memory,), daemon=True).start()
    while True:
        sock, _ = server.accept()
        threading.Thread(target=Connection(engine, sock).serve, daemon=True).start()


if __name__ == "__main__":
    main()

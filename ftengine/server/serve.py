"""Life of an engine process: listen, say hello, load, serve, drain, die with its manager.

The event loop runs on the main thread, the engine on a thread of its own. Stdout brings Hello, then
Health when the load has ended or the engine has failed: who waits for that need not keep asking.
Exit codes: 0 after a drain, 1 when the model could not be loaded or the engine thread failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ftengine.config import PARK_S, EngineConfig, ServerConfig
from ftengine.constraints.worker import STACK_BYTES, start_deep
from ftengine.errors import EngineError, RequestError
from ftengine.protocol import PROTOCOL_VERSION, Health, Hello, encode_line
from ftengine.runtime.engine import Engine
from ftengine.server.app import App
from ftman.clock import SYSTEM, Clock

log = logging.getLogger(__name__)

_TICK_S = 0.1
_FAILED_SHOWN_S = 1.0
"""A failed load stays readable on /health this long, so that the manager can relay the reason."""


def serve(engine_config: EngineConfig, server_config: ServerConfig, parent: int) -> int:
    """Run an engine until it is told to stop. Returns the exit code.

    parent: the process that this one was started by.
    """
    listener = _listen(server_config.address)
    process = EngineProcess(Engine(engine_config), server_config, listener, parent=parent)
    try:
        return asyncio.run(process.run())
    finally:
        listener.close()
        _remove_socket(server_config.address)


class EngineProcess:
    """The event-loop side of one engine process; only `_engine_main` runs elsewhere."""

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        listener: socket.socket,
        clock: Clock = SYSTEM,
        *,
        parent: int = 0,
    ) -> None:
        self._engine = engine
        self._config = config
        self._listener = listener
        self._clock = clock
        self._parent = parent or os.getppid()
        self._last_health_s: float | None = None
        self._exit_code: int | None = None
        self._drain_until_s: float | None = None

    async def run(self) -> int:
        """Serve until drained, orphaned or failed. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._start_drain)
        _say(Hello(_address_of(self._listener), PROTOCOL_VERSION, os.getpid()))
        # The load does not wait for the server: who connects early waits in the listener.
        thread = start_deep(self._engine_main, "engine", STACK_BYTES)
        server = _Server(self._http_config())
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        while not serving.done() and not self._is_over(thread):
            await asyncio.sleep(_TICK_S)
        self._engine.stop()
        await asyncio.to_thread(thread.join, 5.0 + PARK_S)
        server.should_exit = True
        await serving
        return self._exit_code or 0

    def _engine_main(self) -> None:
        """The engine thread: load, then serve until stopped."""
        try:
            self._engine.load()
            _say(self._engine.health())
            self._engine.run()
            return
        except EngineError as error:
            log.error("%s", error.message)
            self._exit_code = 0 if error.code == "cancelled" else 1
        except Exception as error:  # the root of this thread
            log.exception("the engine thread failed")
            self._engine.fail(f"the engine thread failed: {type(error).__name__}: {error}")
            self._exit_code = 1
        _say(self._engine.health())

    def _is_over(self, thread: threading.Thread) -> bool:
        now = self._clock.monotonic()
        if not thread.is_alive():
            return self._failure_was_shown(now)
        if self._drain_until_s is not None:
            health = self._engine.health()
            idle = health.running == 0 and health.waiting == 0
            return idle or now >= self._drain_until_s
        if self._is_orphan(now):
            log.warning("no manager asks for this engine any more; it ends")
            self._start_drain()
        return False

    def _failure_was_shown(self, now: float) -> bool:
        if self._drain_until_s is None:
            self._drain_until_s = now + _FAILED_SHOWN_S
        return now >= self._drain_until_s

    def _is_orphan(self, now: float) -> bool:
        """No work, and nobody asked for the health for too long since somebody last did.

        A parent that died before its first question counts as if it had asked just before.
        """
        if self._last_health_s is None:
            if os.getppid() != self._parent:
                self._last_health_s = now
            return False
        health = self._engine.health()
        if health.running or health.waiting:
            return False
        return now - self._last_health_s > self._config.orphan_limit_s

    def _start_drain(self) -> None:
        self._engine.drain()
        if self._drain_until_s is None:
            self._drain_until_s = self._clock.monotonic() + self._config.drain_s

    def _on_health(self) -> None:
        self._last_health_s = self._clock.monotonic()

    def _http_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            App(self._engine, self._config.token, self._on_health),
            log_config=None,
            access_log=False,
            lifespan="off",
            http=AutoHTTPProtocol,
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
            server_header=False,
        )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers; ours drain instead."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _say(message: Hello | Health) -> None:
    """One line on stdout; where nobody reads it any more it is lost."""
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(encode_line(message))
        sys.stdout.buffer.flush()


def _listen(address: str) -> socket.socket:
    kind, _, rest = address.partition(":")
    try:
        if kind == "unix":
            _remove_socket(address)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(rest)
            Path(rest).chmod(0o600)
        else:
            host, _, port = rest.rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host.strip("[]"), int(port)))
        listener.listen(128)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"cannot listen on {address}: {error}; choose another address", code="bad_setting"
        ) from None
    listener.setblocking(False)
    return listener


def _address_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"tcp:{host}:{name[1]}"


def _remove_socket(address: str) -> None:
    kind, _, rest = address.partition(":")
    if kind == "unix" and Path(rest).is_socket():
        Path(rest).unlink(missing_ok=True)

"""The manager as a process: lock, port, record file, signals, orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from ftman import __version__, files
from ftman import log as log_module
from ftman.autostart.notify import Notifier, keep_fed
from ftman.catalog.lock import acquire_manager_lock
from ftman.clock import SYSTEM, pause
from ftman.config import Config, Paths, engine_environment
from ftman.errors import ConflictError, FtmanError, UsageError
from ftman.gateway.protocol import GuardedProtocol, raise_open_files
from ftman.memory import settle
from ftman.service import Service
from ftman.supervisor.launcher import Launcher
from ftman.supervisor.port_owner import listener_pid, process_name

log = logging.getLogger(__name__)

GRACE_S = 20
THREADS_S = 3.0
"""Threads that still compute when everything has ended have so long."""
WORKER = "ft-work"
CUT_BEFORE_S = 3
"""Streams are told of the end this long before the grace is over."""
KEEP_ALIVE_S = 300
MAX_HEAD_BYTES = 64 << 10
RECORD_NAME = "manager.json"
PROBE_TIMEOUT_S = 2.0
LOG_LOOK_S = 10.0


def serve(
    config: Config,
    make_gateway: Callable[[Service], Any],
    launcher: Launcher | None = None,
    token: str = "",
) -> int:
    """Run until SIGTERM, SIGINT, SIGHUP or a shutdown request; returns the exit code.

    token: what our own command line shows where keys are asked for.
    Raises: FtmanError when it cannot start (port taken, store in use, certificate unusable).
    """
    check_certificate(config)
    raise_open_files()
    listener = bind(config)
    try:
        port = int(listener.getsockname()[1])
        config = replace(config, port=port)
        lock = acquire_manager_lock(config.paths)
        try:
            with _record(config, token):
                asyncio.run(_main(config, make_gateway, launcher, listener))
        finally:
            lock.release()
    finally:
        listener.close()
    _leave_threads()
    return 0


async def _main(
    config: Config,
    make_gateway: Callable[[Service], Any],
    launcher: Launcher | None,
    listener: socket.socket,
) -> None:
    loop = asyncio.get_running_loop()
    workers = ThreadPoolExecutor(thread_name_prefix=WORKER)
    loop.set_default_executor(workers)
    service = Service(config, launcher=launcher)
    try:
        await Server(service, make_gateway(service)).run(listener)
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
        loop.set_default_executor(ThreadPoolExecutor(1))  # it would be waited for without an end


def _leave_threads() -> None:
    """End the process where a thread goes on computing for a client who is gone.

    Nothing else can end such a thread, and Python waits for it; everything else has ended before.
    """
    limit = SYSTEM.monotonic() + THREADS_S
    while any(thread.name.startswith(WORKER) for thread in threading.enumerate()):
        if SYSTEM.monotonic() > limit and threading.current_thread() is threading.main_thread():
            log.warning("a thread still computes; ended without it")
            logging.shutdown()
            os._exit(0)
        if SYSTEM.monotonic() > limit:
            return
        pause(0.02)


def check_certificate(config: Config) -> None:
    """Raises: UsageError when https is asked for and cannot be served."""
    if config.tls_cert is None:
        if config.scheme == "https":
            raise UsageError(
                f"{config.said_by.get('host', 'FT_HOST')} says https, but there is no certificate",
                hint="Name its files: FT_TLS_CERT=cert.pem FT_TLS_KEY=key.pem ft serve",
                code="bad_setting",
            )
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A key with a passphrase would be asked for on a terminal that is not there.
        context.load_cert_chain(config.tls_cert, config.tls_key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the certificate {config.tls_cert} with the key {config.tls_key} cannot be used: "
            f"{error}",
            hint="Both are PEM files, the key without a passphrase; see FT_TLS_CERT, FT_TLS_KEY.",
            code="bad_setting",
        ) from None


def uvicorn_settings(
    gateway: Any,
    grace_s: int = GRACE_S,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Config:
    """How uvicorn serves the gateway."""
    return uvicorn.Config(
        gateway,
        lifespan="off",
        http=GuardedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("server", f"ft/{__version__}")],
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


class Server:
    """One uvicorn server and its ordered end."""

    def __init__(self, service: Service, gateway: Any):
        self._service = service
        self._gateway = gateway
        config = service.config
        settings = uvicorn_settings(gateway, certificate=config.tls_cert, key=config.tls_key)
        self._uvicorn = _QuietServer(settings)
        self._notifier = Notifier(engine_environment(), os.getpid())

    async def run(self, listener: socket.socket) -> None:
        """Serve until told to stop, then end everything that was started."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_loop_error)
        for number in stop_signals():
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, self._on_signal, number)
        self._service.on_stop = self.stop
        await self._service.start()
        settle()
        log.info("ft %s listens on %s, pid %d", __version__, _shown(listener), os.getpid())
        self._notifier.ready(f"ft {__version__} listens on {_shown(listener)}")
        log_path = self._service.config.paths.logs / log_module.NAME
        beside = [
            asyncio.ensure_future(keep_fed(self._notifier, self._service.moves, SYSTEM)),
            asyncio.ensure_future(keep_small(log_path)),
        ]
        try:
            await self._uvicorn.serve(sockets=[listener])
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._service.close()
            log.info("ft %s has ended", __version__)

    def stop(self) -> None:
        """Stop admitting; running answers have GRACE_S seconds."""
        if self._uvicorn.should_exit:
            return
        log.info("stopping: answers under way have %d s", GRACE_S)
        self._uvicorn.should_exit = True
        self._service.stopping = True
        self._notifier.stopping()
        loop = asyncio.get_running_loop()
        loop.call_later(GRACE_S - CUT_BEFORE_S, self._gateway.cut)

    def _on_signal(self, number: int) -> None:
        if self._uvicorn.should_exit and number == signal.SIGINT:
            log.info("stopping at once")
            self._gateway.cut()
            self._uvicorn.force_exit = True
        self.stop()


async def keep_small(path: Path, every_s: float = LOG_LOOK_S) -> None:
    """Rotate the log at `path` while it is this process's stderr; elsewhere it is not our file."""
    while True:
        await SYSTEM.sleep(every_s)
        try:
            if os.path.samestat(os.fstat(2), path.stat()):
                files.rotate_log(path, log_module.LIMIT_BYTES, log_module.KEPT)
        except OSError as error:
            log.debug("the log was not looked at: %s", error)


def stop_signals() -> list[int]:
    """Signals that end the manager in order: also that of a terminal that is closed.

    Under nohup, a closed terminal is to end nothing.
    """
    hang_up = getattr(signal, "SIGHUP", None)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        numbers.append(hang_up)
    return list(map(int, numbers))


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what no task owns; a wake-up that came just after its waiter was cancelled is nothing.

    The HTTP client waits on unix sockets with a bare future, so a client that leaves in the very
    moment in which its engine sends wakes a future that is cancelled already.
    """
    late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if late and "Future.set_result" in str(context.get("message")):
        log.debug("a cancelled wait was woken up")
        return
    if "accept() out of system resource" in str(context.get("message")):
        log.warning("no connection can be taken for a moment: %s", context.get("exception"))
        return
    loop.default_exception_handler(context)


class _QuietServer(uvicorn.Server):
    """uvicorn without signal handling of its own: a stop asked for is exit code 0 here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(config: Config) -> socket.socket:
    """Bind the configured address.   Raises: ConflictError saying who has the port."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        # Listening now, so that two managers that start at once cannot both believe they won.
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _taken(config) from None
        raise FtmanError(
            f"cannot listen on {config.address}: {error.strerror or error}",
            hint="Choose another address: FT_HOST=127.0.0.1:11435 ft serve",
            code="bind_failed",
        ) from None
    return listener


def _taken(config: Config) -> ConflictError:
    who = _server_at(config)
    pid = listener_pid(config.port)
    if who.startswith("ft/"):
        owner = f" (pid {pid})" if pid else ""
        return ConflictError(
            f"ft is already serving on {config.address}{owner}, version {who[3:]}",
            hint="Use that one: ft ps. Or give this one another port: FT_HOST=127.0.0.1:11435 "
            "ft serve",
            code="already_serving",
        )
    name = process_name(pid) or who or "another program"
    owner = f"{name} (pid {pid})" if pid else name
    stop = f"systemctl stop {name}" if name == "ollama" else f"kill {pid}" if pid else "end it"
    return ConflictError(
        f"port {config.port} is taken by {owner}",
        hint="Two servers cannot share it. Either stop it:  "
        f"{stop}\n  or give ft another port:  FT_HOST=127.0.0.1:{config.port + 1} ft serve",
        code="port_taken",
    )


def _server_at(config: Config) -> str:
    """The Server header of what answers on the port; "" when nothing does in time."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    connection = http.client.HTTPConnection(host, config.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/", headers={"host": "localhost"})
        reply = connection.getresponse()
        if reply.getheader("server"):
            return str(reply.getheader("server"))
        return "ollama" if reply.read(64) == b"Ollama is running" else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


@contextlib.contextmanager
def _record(config: Config, token: str) -> Iterator[None]:
    """Say in the run folder, which is private, where this manager is, for the command line."""
    path = record_path(config.paths)
    address = config.url if config.tls_cert is not None else config.address
    value = {"address": address, "pid": os.getpid(), "version": __version__, "token": token}
    files.write_atomic(path, json.dumps(value | {"wall_s": SYSTEM.wall()}).encode() + b"\n")
    try:
        yield
    finally:
        files.unlink(path)


def record_path(paths: Paths) -> Path:
    """Where the record lies."""
    return paths.run / RECORD_NAME


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

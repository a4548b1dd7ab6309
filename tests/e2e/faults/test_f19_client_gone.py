"""F19: clients that leave by FIN, RST or half-close, in the queue, in a load, in an answer."""

from __future__ import annotations

import json
import socket
import struct
import time
from urllib.parse import urlsplit

from ftman.config import Paths
from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.manager_process import CHAT, Rig, ask, engines, fake, runs, until
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import ids_of, install

LIMIT_S = 1.0
STALL_S = 15.0
"""R4."""
HOWS = ("close", "rst", "half")
PHASES = ("head", "body", "load", "answer", "queue")
SCRIPT = fake(FakeScript(load_s=0.3, tokens=ids_of("hello world ") * 100, token_s=0.01))


def send(url: str, *, part: float = 1.0) -> socket.socket:
    """Open a connection and send a chat request, or the first part of it."""
    place = urlsplit(url)
    assert place.hostname is not None
    data = json.dumps(CHAT).encode()
    head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    whole = head.encode() + data
    connection = socket.create_connection((place.hostname, place.port or 0), timeout=60)
    connection.sendall(whole[: max(1, int(len(whole) * part))])
    return connection


def leave(connection: socket.socket, how: str) -> None:
    """End a connection."""
    if how == "rst":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()


def in_use(url: str) -> int:
    """Leases of all engines."""
    return sum(item["ft"]["in_use"] for item in engines(url))


def one_departure(rig: Rig, url: str, phase: str, how: str) -> None:
    """Go to a phase, leave, and see that nothing is kept for the one who left."""
    if phase in ("head", "body"):
        low, high = (0.0, 0.4) if phase == "head" else (0.8, 0.99)
        connection = send(url, part=rig.rng.uniform(low, high))
        time.sleep(0.02)
        leave(connection, how)
        connection.close()
        return
    first = send(url)
    if phase == "load":
        time.sleep(rig.rng.uniform(0, 0.05))
    else:
        until(lambda: in_use(url) == 1)
        first.recv(100)
    connections = [first]
    if phase == "queue":
        connections += [send(url) for _ in range(2)]
        until(lambda: in_use(url) == 3)
    for connection in reversed(connections):
        leave(connection, how)
    started = time.monotonic()
    until(lambda: in_use(url) == 0, STALL_S)  # a busy machine is late; a leak never ends
    spent_s = time.monotonic() - started
    ledger.level("R4", f"gone in {phase}, s", spent_s, LIMIT_S)
    for connection in connections:
        connection.close()


@runs
def test_nothing_is_kept_for_clients_that_left(rig: Rig, num_points: int) -> None:
    install(Paths(rig.home, rig.home / "models"))
    with rig.manager(SCRIPT, FT_NUM_PARALLEL="1") as manager:
        body = CHAT | {"options": {"num_predict": 3}}
        for _ in range(2):
            expected = ask(manager.url, body).text
        before = None
        for number in range(4 * num_points):
            if number == num_points:  # by now every path was taken
                ask(manager.url, body)  # with an engine, as there is one at the end
                before = invariants.vitals(manager.process.pid)
            if number % 5 == 0:
                ask(manager.url, {"model": "tiny", "keep_alive": 0, "prompt": ""}, "/api/generate")
            phase, how = rig.rng.choice(PHASES), rig.rng.choice(HOWS)
            one_departure(rig, manager.url, phase, how)
        assert ask(manager.url, body).text == expected
        invariants.answers_when_healthy(manager.url)
        assert before is not None
        invariants.back_to(manager.process.pid, before)

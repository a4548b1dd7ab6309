"""F12: mirrors that are slow, cut off, refuse, lie about lengths, send something else entirely."""

from __future__ import annotations

import random
import socket
import time
from typing import Any

import pytest

from ftman.errors import FtmanError
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import Rig, runs
from tests.fakes.hub import BadHub
from tests.ftman.pull.conftest import Station, options
from tests.ftman.pull.test_download import DATA, failure, fetch, file_of

KEEPS = ("slow:2000", "cut@{n}", "stall", "close", "429:0", "500", "503:0", "403", "404", "416")
"""Of these, every byte that came is kept, and none is fetched again."""
WASTES = (
    "no-range",
    "wrong-content-range",
    "wrong-length",
    "etag:other",
    "loop",
    "html",
    "gzip",
)
DEADLINE_S = 30.0
CONNECTIONS = 4
"""To one file, at most."""
NO_HOST = "nosuch.invalid"


def script(kind: str, rng: random.Random, *, alone: bool = False) -> list[str]:
    """Some good answers, then the bad one, for ever or once. alone: nobody can take over."""
    if alone and kind.startswith("slow"):
        kind = "slow:2000000"
    bad = kind.format(n=rng.randrange(1, 60_000))
    return ["ok"] * rng.randrange(5) + [bad] + rng.choice([[], ["ok"]])


@runs
def test_another_mirror_takes_over_without_losing_a_byte(
    rig: Rig, hub: BadHub, num_points: int
) -> None:
    for number in range(num_points):
        kind = rig.rng.choice(KEEPS + WASTES)
        bad = hub.add(f"/bad/{number}", DATA, *script(kind, rig.rng))
        good = hub.add(f"/good/{number}", DATA)
        target = rig.root / f"f{number}"
        started = time.monotonic()
        fetch(file_of(bad, good), target)
        assert time.monotonic() - started <= DEADLINE_S, kind
        assert target.read_bytes() == DATA, kind
        sent = hub.bytes_sent(f"/bad/{number}") + hub.bytes_sent(f"/good/{number}")
        # What is on its way when a connection is given up may be counted by the server alone; one
        # that knows no ranges begins the file on each connection that asks for a part.
        slack = CONNECTIONS * len(DATA) if kind in WASTES else 64 << 10
        assert sent <= len(DATA) + slack, (kind, sent)
    rig.check_outside()


@runs
def test_a_lone_bad_mirror_ends_in_one_typed_error_or_in_the_file(
    rig: Rig, hub: BadHub, num_points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", without_the_host(socket.getaddrinfo))
    places = ("bad", "dns", "tls", "port")
    for number in range(num_points):
        kind, place = rig.rng.choice(KEEPS + WASTES), rig.rng.choice(places)
        url = {
            "bad": hub.add(f"/f/{number}", DATA, *script(kind, rig.rng, alone=True)),
            "dns": f"http://{NO_HOST}/f",
            "tls": f"https://127.0.0.1:{hub.port}/f",
            "port": "http://127.0.0.1:1/f",
        }[place]
        target = rig.root / f"f{number}"
        started = time.monotonic()
        error = failure(file_of(url), target)
        assert time.monotonic() - started <= DEADLINE_S, (kind, place)
        if error is None:
            assert place == "bad"
            assert target.read_bytes() == DATA
            continue
        assert not target.exists()
        assert "m.gguf" in error.message
        assert "\n" not in error.message
        assert error.hint
        known = {"dns": "cannot be found", "tls": "TLS with", "port": "cannot connect"}
        assert known.get(place, "") in error.message, (place, error.message)


def without_the_host(known: Any) -> Any:
    """Name resolution that does not know NO_HOST."""

    def resolve(host: Any, *given: Any, **named: Any) -> Any:
        if host in (NO_HOST, NO_HOST.encode()):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *given, **named)

    return resolve


@runs
def test_the_store_shows_what_is_whole_and_nothing_else(
    rig: Rig, hub: BadHub, num_points: int
) -> None:
    given = options(families=["llama"])
    for number in range(num_points // 5):
        station = Station(rig.root / f"h{number}")
        models = station.config.paths.models
        kind = rig.rng.choice(KEEPS + WASTES)
        path = f"/x/m{number}.gguf"
        url = hub.add(path, DATA, *script(kind, rig.rng, alone=True))
        error = pull_error(station, url, given)
        present = invariants.sound_models(models)
        assert bool(present) == (error is None), (kind, error)
        hub.script(path, "ok")
        assert pull_error(station, url, given) is None, kind
        assert station.weights(f"m{number}") == DATA
        invariants.no_orphans(models)
        assert station.leftovers() == []
    rig.check_outside()


def pull_error(station: Station, url: str, given: Any) -> Exception | None:
    """How a pull ended: it reports success once, or raises once."""
    try:
        found = station.pull(url, given, insecure=True)
    except FtmanError as error:
        return error
    assert [item.status for item in found].count("success") == 1
    return None

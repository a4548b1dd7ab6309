"""F24: foreign Host and Origin, wrong method, no key, wrong key, too weak a key, on every route.

That every route has a row in the table of rights is held by tests/ftman/gateway/test_access.py;
here the real process is asked, over real sockets.
"""

from __future__ import annotations

import random

import httpx

from ftman.config import Paths
from ftman.gateway.app import ROUTES
from ftman.gateway.rights import right_of
from ftman.gateway.routes import Route
from ftman.keys import MANAGE, USE, create_key, keys_path
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import FAKE, LONG, Rig, runs
from tests.ftman.gateway.serving import install

KINDS = ("host", "origin", "method", "no key", "wrong key", "weak key")
PER_POINT = 12
FOREIGN = ("evil.example", "127.0.0.1.evil.example", "8.8.8.8", "localhost.evil.example:11434")
ORIGINS = ("https://evil.example", "null", "http://localhost.evil.example")


def expected(route: Route, kind: str) -> int:
    """The status that this route must answer with; 0 = whatever it answers to anybody."""
    right = right_of(route.path)
    if kind in ("host", "origin"):
        return 403
    if kind == "method":
        return 405
    if kind == "weak key":
        return 403 if right == MANAGE else 0
    return 401 if right else 0


def headers_for(kind: str, keys: dict[str, str], rng: random.Random) -> dict[str, str]:
    """What is sent; a good key goes with everything that is not about keys."""
    name = rng.choice(("x-api-key", "authorization"))
    said = {"no key": "", "wrong key": "ft-" + "0" * 40, "weak key": keys[USE]}
    secret = said.get(kind, keys[MANAGE])
    headers = {name: f"Bearer {secret}" if name == "authorization" else secret} if secret else {}
    if kind == "host":
        headers["host"] = rng.choice(FOREIGN)
    if kind == "origin":
        headers["origin"] = rng.choice(ORIGINS)
    return headers


@runs
def test_no_route_is_forgotten(rig: Rig, num_points: int) -> None:
    paths = Paths(rig.home, rig.home / "models")
    install(paths)
    cases = [(route, kind) for route in ROUTES for kind in KINDS]
    if num_points < LONG:
        cases = rig.rng.sample(cases, PER_POINT * num_points)
    models = rig.check_store()
    with (
        rig.manager(FAKE) as manager,
        httpx.Client(base_url=manager.url, trust_env=False, timeout=60) as client,
    ):
        keys = {right: create_key(keys_path(paths), right, right) for right in (USE, MANAGE)}
        for route, kind in cases:
            status = expected(route, kind)
            if not status:
                continue
            method = "PATCH" if kind == "method" else route.method
            path = route.path.replace("*", "x")
            headers = headers_for(kind, keys, rig.rng)
            reply = client.request(method, path, headers=headers, content=b"{}")
            assert reply.status_code == status, (route.method, route.path, kind, reply.text)
            if kind not in ("host", "origin", "method") and route.method != "HEAD":
                invariants.told_why(reply)
        for secret in keys.values():
            assert secret not in manager.log
        body = {"model": "tiny", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
        reply = client.post("/api/generate", json=body, headers={"x-api-key": keys[USE]})
        assert reply.json()["done"] is True
    assert rig.check_store() == models

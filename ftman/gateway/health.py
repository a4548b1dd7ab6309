"""Probes: is the manager alive, is anything stuck, does a token come out at the end.

/health costs next to nothing and tells only ok or not; /api/ft/health says what it knows.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ftman.errors import BusyError, UsageError
from ftman.gateway.errors import headers_of, to_json
from ftman.gateway.routes import Call, Reply, Route


async def health(call: Call) -> Reply:
    """GET /health: 200 while the scheduler turns and no engine is stuck; models load when asked."""
    trouble = (await call.service.life()).trouble
    return _reply({"status": "stalled", "reason": trouble} if trouble else {"status": "ok"})


async def details(call: Call) -> Reply:
    """GET /api/ft/health: last step and token of each engine; ?deep=1 has each make one token."""
    deep = call.query.get("deep", "0")
    if deep not in ("0", "1"):
        raise UsageError("deep is 0 or 1", hint="GET /api/ft/health?deep=1")
    life = await call.service.life()
    probes = await call.service.probe() if deep == "1" else []
    failed = [f"{item.name}: {item.error}" for item in probes if item.error]
    trouble = "; ".join(filter(None, (life.trouble, *failed)))
    told: dict[str, Any] = {"status": "stalled" if trouble else "ok"}
    if trouble:
        told["reason"] = trouble
    told["scheduler_s"] = life.scheduler_s
    told["queue"] = len(call.service.queue())
    told["engines"] = [asdict(item) for item in life.engines]
    if deep == "1":
        told["probes"] = [asdict(item) for item in probes]
    return _reply(told)


def _reply(told: dict[str, Any]) -> Reply:
    if told["status"] == "ok":
        return Reply(to_json(told))
    return Reply(to_json(told), 503, headers=headers_of(BusyError("stalled")))


ROUTES: tuple[Route, ...] = (
    *(
        Route(method, path, health)
        for path in ("/health", "/v1/health", "/api/hello")
        for method in ("GET", "HEAD")
    ),
    Route("GET", "/api/ft/health", details),
)

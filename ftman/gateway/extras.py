"""Our own routes beside the dialects: /api/ft/* for the command line, and /health."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from ftman import __version__
from ftman.gateway.body import OLLAMA_TEXTS
from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.ollama.transfer import progress_value
from ftman.gateway.ollama.values import required_name
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.gateway.stream import NDJSON, ndjson


async def health(call: Call) -> Reply:
    """GET /health: the manager answers."""
    return Reply(to_json({"status": "ok"}))


async def status(call: Call) -> Reply:
    """GET /api/ft/status: who this manager is and which settings it runs with."""
    service = call.service
    config = service.config
    paths = config.paths
    settings = asdict(config.engine) | {
        "address": config.address,
        "keep_alive_s": config.keep_alive_s,
        "max_queue": config.max_queue,
        "max_loaded_models": config.max_loaded_models,
        "origins": list(config.origins),
        "registry": list(config.registry),
        "reserve_bytes": config.reserve_bytes,
        "debug": config.debug,
    }
    value = {
        "version": __version__,
        "pid": os.getpid(),
        "started_wall_s": service.started_wall_s,
        "paths": {
            "home": str(paths.home),
            "models": str(paths.models),
            "logs": str(paths.logs),
            "run": str(paths.run),
        },
        "settings": settings,
    }
    return Reply(to_json(value))


async def search(call: Call) -> Reply:
    """GET /api/ft/search?q=: models of the index."""
    found = call.service.search(call.query.get("q", ""))
    return Reply(to_json({"models": [_plain(asdict(entry)) for entry in found]}))


async def jobs(call: Call) -> Reply:
    """GET /api/ft/jobs: pull jobs."""
    return Reply(to_json({"jobs": [_plain(asdict(job)) for job in call.service.jobs()]}))


async def cancel_job(call: Call) -> Reply:
    """DELETE /api/ft/jobs/:id."""
    await call.service.cancel_job(call.tail)
    return Reply(media_type="")


async def calibrate(call: Call) -> StreamReply:
    """POST /api/ft/calibrate: measure this machine for a model."""
    given = required_name(call.fields("CalibrateRequest", OLLAMA_TEXTS))
    return StreamReply(
        _calibration(call, given),
        NDJSON,
        on_error=lambda error: encode_error(OLLAMA, error) + b"\n",
        heartbeat=lambda: ndjson({"status": "calibrating"}),
    )


async def _calibration(call: Call, given: str) -> AsyncIterator[bytes]:
    steps = call.service.calibrate(given)
    async with contextlib.aclosing(steps):
        async for step in steps:
            yield ndjson(progress_value(step))


async def shutdown(call: Call) -> Reply:
    """POST /api/ft/shutdown: end this manager as SIGTERM does."""
    call.service.ask_to_stop()
    return Reply(to_json({"status": "stopping"}))


def _plain(value: Any) -> Any:
    """Values as JSON knows them: paths and tuples become texts and lists."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


ROUTES = (
    Route("GET", "/health", health),
    Route("GET", "/api/ft/status", status),
    Route("GET", "/api/ft/search", search),
    Route("GET", "/api/ft/jobs", jobs),
    Route("DELETE", "/api/ft/jobs/*", cancel_job),
    Route("POST", "/api/ft/calibrate", calibrate, body="whole"),
    Route("POST", "/api/ft/shutdown", shutdown),
)

"""Our own routes beside the dialects: /api/ft/* for the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict
from typing import Any

from ftman import __version__
from ftman.calibration import Step
from ftman.gateway.body import OLLAMA_TEXTS
from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.gateway.stream import NDJSON, ndjson
from ftman.pull.progress import Progress
from ftman.service.verify import Verdict


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
    step = service.measuring()
    measuring = step and {"phase": step.phase, "completed": step.completed, "total": step.total}
    value = {
        "version": __version__,
        "measuring": measuring,
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
    """POST /api/ft/calibrate: measure this machine, and the disk of `model` where one is given."""
    given = call.fields("CalibrateRequest", OLLAMA_TEXTS).text("model")
    return StreamReply(
        _calibration(call.service.calibrate(given)),
        NDJSON,
        on_error=lambda error: encode_error(OLLAMA, error) + b"\n",
        heartbeat=lambda: ndjson({"status": "calibrating"}),
    )


async def _calibration(steps: AsyncGenerator[Step, None]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(steps):
        async for step in steps:
            if step.profile is not None:
                yield ndjson({"status": "success", "profile": dict(step.profile)})
                return
            told = {"total": step.total, "completed": step.completed}
            yield ndjson({"status": f"measuring {step.phase}", **told})


async def experts(call: Call) -> Reply:
    """GET /api/ft/experts: slots and counts of every loaded model."""
    return Reply(to_json({"models": [asdict(item) for item in await call.service.experts()]}))


async def memory(call: Call) -> Reply:
    """POST /api/ft/memory: divide a loaded model's memory anew."""
    fields = call.fields("MemoryRequest", OLLAMA_TEXTS)
    slots, kv_bytes = fields.integer("expert_slots"), fields.integer("kv_bytes")
    return Reply(to_json(asdict(await call.service.memory(fields.text("model"), slots, kv_bytes))))


async def fit(call: Call) -> Reply:
    """POST /api/ft/fit: what a model will do on this machine or a named one."""
    fields = call.fields("FitRequest", OLLAMA_TEXTS)
    context = fields.integer("context")
    answer = await call.service.fit(fields.text("model"), fields.text("device"), context)
    return Reply(to_json(dict(answer)))


async def plan(call: Call) -> Reply:
    """POST /api/ft/plan: what pulling a model would cost; {} while it is being pulled."""
    fields = call.fields("PlanRequest", OLLAMA_TEXTS)
    insecure = fields.flag("insecure", False)
    return Reply(
        to_json(dict(await call.service.pull_plan(fields.text("model"), insecure=insecure)))
    )


async def verify(call: Call) -> StreamReply:
    """POST /api/ft/verify: read a model whole (or all), name the damage; `repair` mends it."""
    fields = call.fields("VerifyRequest", OLLAMA_TEXTS)
    steps = call.service.verify(fields.text("model"), repair=fields.flag("repair", False))
    return StreamReply(
        _verdicts(steps),
        NDJSON,
        on_error=lambda error: encode_error(OLLAMA, error) + b"\n",
        heartbeat=lambda: ndjson({"status": "verifying"}),
    )


async def _verdicts(steps: AsyncGenerator[Progress | Verdict, None]) -> AsyncIterator[bytes]:
    found = []
    async with contextlib.aclosing(steps):
        async for step in steps:
            if isinstance(step, Verdict):
                found.append(asdict(step))
                yield ndjson({"status": f"looked at {step.name}", "model": asdict(step)})
            elif step.status != "success":
                told = {"total": step.total, "completed": step.completed}
                yield ndjson({"status": step.status, **told})
    yield ndjson({"status": "success", "models": found})


async def gc(call: Call) -> Reply:
    """POST /api/ft/gc: remove what nothing needs."""
    return Reply(to_json({"freed": await asyncio.to_thread(call.service.collect_garbage)}))


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
    Route("GET", "/api/ft/status", status),
    Route("GET", "/api/ft/search", search),
    Route("GET", "/api/ft/jobs", jobs),
    Route("DELETE", "/api/ft/jobs/*", cancel_job),
    Route("POST", "/api/ft/calibrate", calibrate, body="whole"),
    Route("GET", "/api/ft/experts", experts),
    Route("POST", "/api/ft/memory", memory, body="whole"),
    Route("POST", "/api/ft/fit", fit, body="whole"),
    Route("POST", "/api/ft/plan", plan, body="whole"),
    Route("POST", "/api/ft/verify", verify, body="whole"),
    Route("POST", "/api/ft/gc", gc),
    Route("POST", "/api/ft/shutdown", shutdown),
)

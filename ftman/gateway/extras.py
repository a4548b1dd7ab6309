"""Our own routes beside the dialects: /api/ft/* for the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftman import __version__
from ftman.calibration import Step
from ftman.config import settings_of
from ftman.errors import UsageError
from ftman.gateway.body import OLLAMA_TEXTS
from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.ollama.progress import progress_reply
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.gateway.stream import NDJSON, ndjson
from ftman.names import printable
from ftman.pull.progress import Progress
from ftman.service.verify import Verdict


async def status(call: Call) -> Reply:
    """GET /api/ft/status: who this manager is and which settings it runs with."""
    service = call.service
    config = service.config
    paths = config.paths
    parked = config.engine.park_disk
    settings = asdict(config.engine) | {
        "park_disk": None if parked is None else str(parked),
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
        "prepared_pid": service.prepared_pid,
        "started_wall_s": service.started_wall_s,
        "paths": {
            "home": str(paths.home),
            "models": str(paths.models),
            "logs": str(paths.logs),
            "run": str(paths.run),
        },
        "settings": settings,
        "effective": {
            key: {"value": value, "from": origin}
            for key, (value, origin) in settings_of(config).items()
        },
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


async def steer_job(call: Call) -> Reply:
    """POST /api/ft/jobs/:id/pause and /resume: stop a pull to go on later, go on with it."""
    job_id, _, wish = call.tail.rpartition("/")
    if wish == "pause":
        await call.service.pause_job(job_id)
        return Reply(to_json({"status": "paused", "id": job_id}))
    if wish == "resume":
        return Reply(
            to_json({"status": "resumed", "job": _plain(asdict(call.service.resume_job(job_id)))})
        )
    raise UsageError(
        f"a job cannot be told {printable(wish or call.tail)!r}",
        hint="POST /api/ft/jobs/ID/pause or /resume; DELETE /api/ft/jobs/ID ends it.",
    )


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
            told = {"total": step.total, "completed": step.completed, "unit": "measurements"}
            yield ndjson({"status": f"measuring {step.phase}", **told})


async def bench(call: Call) -> StreamReply:
    """POST /api/ft/bench: time per operator of `model` on this machine's CPU."""
    name = call.fields("BenchRequest", OLLAMA_TEXTS).text("model")
    call.service.catalog.find(name)  # a wrong name is told before the reply begins
    return StreamReply(
        _bench(call, name),
        NDJSON,
        on_error=lambda error: encode_error(OLLAMA, error) + b"\n",
        heartbeat=lambda: ndjson({"status": "measuring"}),
    )


async def _bench(call: Call, name: str) -> AsyncIterator[bytes]:
    yield ndjson({"status": "loading and measuring the model on the CPU"})
    yield ndjson({"status": "success", **await call.service.bench(name)})


async def experts(call: Call) -> Reply:
    """GET /api/ft/experts: slots and counts of every loaded model."""
    return Reply(to_json({"models": [asdict(item) for item in await call.service.experts()]}))


async def queue(call: Call) -> Reply:
    """GET /api/ft/queue: requests that wait, in the order of their turns, each with its reason."""
    return Reply(to_json({"queue": [asdict(item) for item in call.service.queue()]}))


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


async def take_in(call: Call) -> Reply | StreamReply:
    """POST /api/ft/import: install a model from a folder of this machine that ft export wrote."""
    fields = call.fields("ImportRequest", OLLAMA_TEXTS)
    path = Path(fields.text("path"))
    if not path.is_absolute():
        raise UsageError(
            "path must be a whole path on the manager's machine", hint="As /mnt/stick/m"
        )
    steps = call.service.take_in(path, fields.text("name"))
    return await progress_reply(steps, fields.flag("stream", True))


async def gc(call: Call) -> Reply:
    """POST /api/ft/gc: remove what nothing needs; `partials` takes interrupted pulls along."""
    partials = bool(call.body) and call.fields("GcRequest", OLLAMA_TEXTS).flag("partials", False)
    freed = await asyncio.to_thread(call.service.collect_garbage)
    if partials:
        freed += await asyncio.to_thread(call.service.drop_partials)
    return Reply(to_json({"freed": freed}))


async def garbage(call: Call) -> Reply:
    """GET /api/ft/gc: what no model names, with what would be done about it, and partial pulls."""
    orphans, partials = await asyncio.to_thread(call.service.garbage)
    told = {"orphans": [_plain(asdict(item)) for item in orphans]}
    return Reply(to_json({**told, "partials": [_plain(asdict(item)) for item in partials]}))


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
    Route("POST", "/api/ft/jobs/*", steer_job),
    Route("DELETE", "/api/ft/jobs/*", cancel_job),
    Route("POST", "/api/ft/calibrate", calibrate, body="whole"),
    Route("POST", "/api/ft/bench", bench, body="whole"),
    Route("GET", "/api/ft/experts", experts),
    Route("GET", "/api/ft/queue", queue),
    Route("POST", "/api/ft/memory", memory, body="whole"),
    Route("POST", "/api/ft/fit", fit, body="whole"),
    Route("POST", "/api/ft/plan", plan, body="whole"),
    Route("POST", "/api/ft/verify", verify, body="whole"),
    Route("POST", "/api/ft/import", take_in, body="whole"),
    Route("GET", "/api/ft/gc", garbage),
    Route("POST", "/api/ft/gc", gc, body="whole"),
    Route("POST", "/api/ft/shutdown", shutdown),
)

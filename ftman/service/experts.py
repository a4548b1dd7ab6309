"""How engines divide their memory and what happens to routed experts: asked of them, live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftman.errors import FtmanError, NotFoundError, UsageError
from ftman.supervisor.client import (
    CacheStats,
    EngineClient,
    ExpertStats,
    MemoryRequest,
    MemoryState,
)
from ftman.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)

EMULATED = "emulated"
METRICS_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class RunningExperts:
    """Memory, experts and prefix cache of one engine. stats None: a dense model.

    Units: bytes; per second of steps; seconds ago. link_bytes_per_s None: the device is emulated,
    and the seconds of its copies mean nothing.
    """

    name: str
    stats: ExpertStats | None
    kv_bytes: int
    link_bytes_per_s: float | None
    tokens_per_s: float
    last_step_s: float | None
    cache: CacheStats | None = None
    device: str = ""
    weights_bytes: int = 0
    kv_format: str = ""
    compute: str = ""
    kernels: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


async def running_experts(supervisor: Supervisor) -> list[RunningExperts]:
    """Every ready engine; one that does not answer is left out."""
    asked = []
    for engine in supervisor.running():
        client = supervisor.client(engine.spec.key)
        if client is not None:
            asked.append(_ask(engine.spec.name, client))
    found = await asyncio.gather(*asked)
    return [item for item in found if item is not None]


async def engine_metrics(supervisor: Supervisor) -> dict[str, str]:
    """Prometheus text of every ready engine by model name; one that does not answer is left out."""
    clients = {e.spec.name: supervisor.client(e.spec.key) for e in supervisor.running()}
    ready = {name: client for name, client in clients.items() if client is not None}
    texts = await asyncio.gather(*(_metrics_of(*item) for item in ready.items()))
    return {name: text for name, text in zip(ready, texts, strict=True) if text}


async def _metrics_of(name: str, client: EngineClient) -> str:
    try:
        return await client.metrics(METRICS_TIMEOUT_S)
    except FtmanError as error:
        log.warning("the engine of %s does not tell its metrics: %s", name, error)
        return ""


async def divide_memory(
    supervisor: Supervisor, key: str, name: str, expert_slots: int | None, kv_bytes: int | None
) -> MemoryState:
    """Change one engine's expert slots or KV memory.

    Raises: NotFoundError when it is not loaded; UsageError; CannotFitError with the numbers.
    """
    if (expert_slots is None) == (kv_bytes is None):
        raise UsageError("give either expert_slots or kv_bytes, not both")
    if min(expert_slots or 0, kv_bytes or 0) < 0 or kv_bytes == 0:
        raise UsageError("expert_slots must be 0 or more, kv_bytes 1 or more")
    client = supervisor.client(key)
    if client is None:
        raise NotFoundError(
            f"model {name} is not loaded", hint=f"Load it first: ft run {name}", code="not_loaded"
        )
    return await client.memory(MemoryRequest(expert_slots, kv_bytes))


async def _ask(name: str, client: EngineClient) -> RunningExperts | None:
    try:
        info, text, health = await asyncio.gather(client.info(), client.metrics(), client.health())
    except FtmanError as error:
        log.warning("the engine of %s does not tell about its experts: %s", name, error)
        return None
    counted = _unlabelled(text)
    decode_s = counted.get("ft_engine_decode_seconds_total", 0.0)
    busy_s = decode_s + counted.get("ft_engine_prefill_seconds_total", 0.0)
    tokens = counted.get("ft_engine_completion_tokens_total", 0.0)
    link_bytes = 0 if info.experts is None else info.experts.link_bytes
    link_rate = link_bytes / busy_s if busy_s else 0.0
    return RunningExperts(
        name=name,
        stats=info.experts,
        kv_bytes=info.kv_bytes,
        link_bytes_per_s=None if info.device == EMULATED else link_rate,
        tokens_per_s=tokens / decode_s if decode_s else 0.0,
        last_step_s=health.last_step_s,
        cache=info.cache,
        device=info.device,
        weights_bytes=info.weights_bytes,
        kv_format=info.kv_format,
        compute=info.compute,
        kernels=info.kernels,
        notes=info.notes,
    )


def _unlabelled(text: str) -> dict[str, float]:
    """Values of Prometheus lines that carry no labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if line.startswith("#") or "{" in name:
            continue
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found

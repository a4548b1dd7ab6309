"""What is told of running experts: a rate of the link only where its seconds mean something."""

from __future__ import annotations

import asyncio

import pytest

from ftengine.protocol import EngineInfo, ExpertStats, Health
from ftman.service.experts import running_experts

METRICS = """# HELP ft_engine_decode_seconds_total x
ft_engine_decode_seconds_total 3.0
ft_engine_prefill_seconds_total 1.0
ft_engine_completion_tokens_total 60
ft_engine_experts_total{layer="0"} 5
"""
STATS = ExpertStats("auto", 8, 8, 64, 4096, link_bytes=8_000_000)


class Client:
    """An engine that answers at once."""

    def __init__(self, device: str, stats: ExpertStats | None) -> None:
        size = (64, 1, 10, 1, 7, 64)
        self._info = EngineInfo(
            (1, 0), "x", "id", "mixtral", device, "float32", *size, {}, 1, 0.0, experts=stats
        )

    async def info(self) -> EngineInfo:
        return self._info

    async def metrics(self) -> str:
        return METRICS

    async def health(self) -> Health:
        return Health("ready", last_step_s=0.5)


class Spec:
    key, name = "id", "m"


class Running:
    spec = Spec()


class Supervisor:
    """One running engine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def running(self) -> list[Running]:
        return [Running()]

    def client(self, _: str) -> Client:
        return self._client


@pytest.mark.parametrize(
    ("device", "stats", "rate"),
    [("cuda", STATS, 2e6), ("emulated", STATS, None), ("cpu", None, 0.0)],
)
def test_link_rate_is_told_where_there_is_a_link(
    device: str, stats: ExpertStats | None, rate: float | None
) -> None:
    found = asyncio.run(running_experts(Supervisor(Client(device, stats))))  # type: ignore[arg-type]
    assert [item.link_bytes_per_s for item in found] == [rate]
    assert found[0].tokens_per_s == 20.0
    assert found[0].stats == stats

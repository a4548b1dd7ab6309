"""A real engine process as tests see it: started with a command line, reached over its socket."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ftengine.protocol import Event, Health, Hello, decode, decode_event

ROOT = Path(__file__).parents[3]


@dataclass
class RunningEngine:
    """One engine process and how to talk to it."""

    process: subprocess.Popen[bytes]
    hello: Hello
    token: str = ""

    def client(self) -> httpx.AsyncClient:
        """An HTTP client of this engine."""
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        kind, _, rest = self.hello.address.partition(":")
        if kind == "tcp":
            return httpx.AsyncClient(base_url=f"http://{rest}", headers=headers, timeout=30)
        transport = httpx.AsyncHTTPTransport(uds=rest)
        return httpx.AsyncClient(
            transport=transport, base_url="http://engine", headers=headers, timeout=30
        )

    async def health(self) -> Health:
        """GET /health."""
        async with self.client() as client:
            return decode(Health, (await client.get("/health")).content)

    async def ready(self) -> None:
        """Wait until the model is loaded."""
        for _ in range(600):
            if (await self.health()).state == "ready":
                return
            await asyncio.sleep(0.03)
        raise AssertionError("the engine did not become ready")

    async def metric(self, name: str) -> float:
        """One value of /metrics."""
        async with self.client() as client:
            text = (await client.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(f"ft_engine_{name} ")]
        return float(lines[0].split()[1])


async def generate(client: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[Event]:
    """POST /generate and yield its events."""
    async with client.stream("POST", "/generate", content=json.dumps(body)) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            yield decode_event(line)


class Starter:
    """Starts engines and ends them with the test."""

    def __init__(self, ftw: Path, folder: Path) -> None:
        self.ftw = ftw
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def arguments(self, *options: str, address: str = "") -> list[str]:
        """The command line of an engine."""
        address = address or f"unix:{self.folder / f'{len(self.started)}.sock'}"
        first = [sys.executable, "-m", "ftengine", "serve", "--ftw", str(self.ftw)]
        return [*first, "--address", address, "--threads", "1", *options]

    def __call__(self, *options: str, address: str = "", token: str = "") -> RunningEngine:
        """Start an engine and read its hello."""
        process = subprocess.Popen(
            self.arguments(*options, address=address), stdout=subprocess.PIPE, cwd=ROOT
        )
        self.started.append(process)
        assert process.stdout is not None
        return RunningEngine(process, decode(Hello, process.stdout.readline()), token)

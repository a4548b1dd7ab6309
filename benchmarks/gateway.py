"""What the manager costs between an engine and a client: tokens per second, first token, CPU.

A scripted engine process gives 2,000 tokens per second in total, one event per token, to 1, 4 and
16 streams. It is asked directly, over its own socket, and through the manager in every dialect, in
turns; the ratio of the two rates, the time added before the first token, the CPU seconds of the
manager per 1,000 tokens and the 99th percentile of /api/tags under load are printed.

    .venv/bin/python -m benchmarks.gateway [--seconds 3] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import report
from ftengine.protocol import GenerateRequest, encode
from ftman.config import Paths
from tests.e2e.processes import manager_process
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of, install

TOKENS_PER_S = 2000
STREAMS = (1, 4, 16)
FIRST_TOKEN_TRIES = 30
TAGS_EVERY_S = 0.02
TAGS_LOAD = 4
"""How many measurements long the load is under which /api/tags is asked."""
TEXT = "The quick brown fox jumps over the lazy dog. " * 4
CONTEXT = 1 << 20
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me about foxes."}]}
HOST = b"Host: localhost\r\n"


@dataclass(frozen=True)
class Target:
    """Where to ask, what, and what each token looks like in the answer."""

    name: str
    address: str
    path: str
    mark: bytes
    body: Any
    limit: str
    head: bytes = HOST

    def request(self, num_tokens: int) -> bytes:
        """The whole HTTP request."""
        body = json.dumps(_with_limit(self.body, self.limit, num_tokens)).encode()
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        return b"POST %s HTTP/1.1\r\n" % self.path.encode() + self.head + length + body


@dataclass
class Seen:
    """One stream as its client saw it. Units: monotonic seconds."""

    started_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    num_tokens: int = 0


@dataclass
class Samples:
    """Everything measured."""

    rates: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    first_ms: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    tags_ms: list[float] = field(default_factory=list)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dialect", choices=("ollama", "openai", "anthropic"), action="append")
    parser.add_argument("--profile", default="", help="write a cProfile of the manager there")
    given = parser.parse_args()
    words = ids_of(TEXT) * (2 + int(given.seconds * TOKENS_PER_S) // len(TEXT))
    script = FakeScript(tokens=words, tokens_per_s=TOKENS_PER_S)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        install(Paths(home, home / "models"), Tiny(context=CONTEXT))
        argv = (sys.executable, "-m", "tests.e2e.fake_manager", script.to_json())
        if given.profile:
            argv = (sys.executable, "-m", "cProfile", "-o", given.profile, *argv[1:])
        environment = {"FT_CONTEXT_LENGTH": str(CONTEXT), "FT_NUM_PARALLEL": "16"}
        with (
            manager_process(home, argv, **environment) as manager,
            _engine(script) as engine,
        ):
            targets = [_direct(engine), *_dialects(manager.url, given.dialect)]
            pid = manager.process.pid
            samples = asyncio.run(_measure(targets, pid, given.seconds, given.rounds))
    _print(samples, targets)


def _direct(address: str) -> Target:
    wire = json.loads(encode(GenerateRequest("bench", ids_of(TEXT))))
    return Target("engine", address, "/generate", b'"type":"token"', wire, "max_tokens")


def _dialects(url: str, wanted: list[str] | None) -> list[Target]:
    address = "tcp:" + url.removeprefix("http://")
    stream = CHAT | {"stream": True}
    found = [
        Target("ollama", address, "/api/chat", b'"content":', stream, "options.num_predict"),
        Target("openai", address, "/v1/chat/completions", b'"content":', stream, "max_tokens"),
        Target("anthropic", address, "/v1/messages", b'"text_delta"', stream, "max_tokens"),
    ]
    return [target for target in found if not wanted or target.name in wanted]


def _with_limit(body: Any, name: str, value: int) -> Any:
    head, _, tail = name.partition(".")
    return body | {head: {tail: value} if tail else value}


@contextlib.contextmanager
def _engine(script: FakeScript) -> Iterator[str]:
    """A second scripted engine, asked without a manager."""
    program = Path(__file__).resolve().parents[1] / "tests" / "fakes" / "engine.py"
    argv = [sys.executable, "-S", str(program), "serve", "--context", str(CONTEXT)]
    patient = replace(script, orphan_s=3600.0)
    argv += ["--parallel", "16", "--fake-script", patient.to_json()]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        url = address.replace("tcp:", "http://") + "/health"
        while httpx.get(url, trust_env=False).status_code != 200:
            time.sleep(0.01)
        yield address
    finally:
        process.kill()
        process.wait()


async def _measure(targets: list[Target], pid: int, seconds: float, rounds: int) -> Samples:
    samples = Samples()
    for target in targets:  # loads the model, warms everything up
        await _stream(target, 50)
    first_ms: dict[str, list[float]] = {target.name: [] for target in targets}
    for _ in range(FIRST_TOKEN_TRIES):  # in turns: a change of the machine hits all alike
        for target in targets:
            seen = await _stream(target, 1)
            first_ms[target.name].append((seen.first_s - seen.started_s) * 1000)
    samples.first_ms = {name: statistics.median(times) for name, times in first_ms.items()}
    for _ in range(rounds):
        for num_streams in STREAMS:
            for target in targets:
                key = (target.name, num_streams)
                cpu_s = _cpu_s(pid)
                rate, num_tokens = await _rate(target, num_streams, seconds)
                samples.rates.setdefault(key, []).append(rate)
                used = (_cpu_s(pid) - cpu_s) / num_tokens * 1000
                samples.cpu_s.setdefault(key, []).append(used)
    load = asyncio.ensure_future(_rate(targets[-1], STREAMS[-1], TAGS_LOAD * seconds))
    async for took_ms in _tags(targets[-1].address, load):
        samples.tags_ms.append(took_ms)
    await load
    return samples


async def _rate(target: Target, num_streams: int, seconds: float) -> tuple[float, int]:
    """Tokens per second over all streams, from the first token of any to the last of all."""
    each = max(1, int(TOKENS_PER_S * seconds / num_streams))
    seen = await asyncio.gather(*(_stream(target, each) for _ in range(num_streams)))
    num_tokens = sum(one.num_tokens for one in seen)
    took_s = max(one.last_s for one in seen) - min(one.first_s for one in seen)
    return num_tokens / took_s, num_tokens


async def _stream(target: Target, num_tokens: int) -> Seen:
    """Ask, and count the tokens that come."""
    reader, writer = await _connect(target.address)
    seen = Seen(started_s=time.monotonic())
    writer.write(target.request(num_tokens))
    tail = b""
    while b"0\r\n\r\n" not in tail:
        data = await reader.read(1 << 16)
        if not data or (not tail and b" 200 " not in data[:20]):
            break
        found = (tail + data).count(target.mark) - tail.count(target.mark)
        if found:
            seen.last_s = time.monotonic()
            seen.first_s = seen.first_s or seen.last_s
            seen.num_tokens += found
        tail = (tail + data)[-len(target.mark) + 1 - 8 :]
    writer.close()
    if seen.num_tokens < num_tokens:
        raise SystemExit(f"{target.name}: {seen.num_tokens} of {num_tokens} tokens: {data!r}")
    return seen


async def _tags(address: str, until: asyncio.Future[Any]) -> AsyncIterator[float]:
    """How long each GET /api/tags takes while `until` is not done, in milliseconds."""
    reader, writer = await _connect(address)
    while not until.done():
        started_s = time.monotonic()
        writer.write(b"GET /api/tags HTTP/1.1\r\n" + HOST + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        yield (time.monotonic() - started_s) * 1000
        await asyncio.sleep(TAGS_EVERY_S)
    writer.close()


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 22)


def _cpu_s(pid: int) -> float:
    """CPU seconds a process has used, in user and system mode."""
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def _print(samples: Samples, targets: list[Target]) -> None:
    engine, *dialects = [target.name for target in targets]
    print(f"{'':12}{'streams':>8}{'tokens/s':>10}{'ratio':>8}{'CPU s / 1000 tokens':>22}")
    ratios: dict[str, float] = {}
    measured: dict[str, Any] = {}
    for num_streams in STREAMS:
        alone = samples.rates[engine, num_streams]
        print(f"{engine:12}{num_streams:>8}{statistics.median(alone):>10.0f}")
        for name in dialects:
            ours = samples.rates[name, num_streams]
            ratio = statistics.median(o / a for o, a in zip(ours, alone, strict=True))
            cpu = statistics.median(samples.cpu_s[name, num_streams])
            rate = statistics.median(ours)
            print(f"{name:12}{num_streams:>8}{rate:>10.0f}{ratio:>8.3f}{cpu:>22.3f}")
            key = f"throughput_{num_streams}"
            ratios[key] = round(min(ratios.get(key, ratio), ratio), 4)
            measured[f"cpu_s_per_1000_{name}_{num_streams}"] = round(cpu, 4)
    added = {name: samples.first_ms[name] - samples.first_ms[engine] for name in dialects}
    p99 = statistics.quantiles(samples.tags_ms, n=100)[-1]
    for name, more in added.items():
        print(f"{name:12} first token {samples.first_ms[name]:.2f} ms, added {more:.2f} ms")
    print(f"/api/tags under load: p99 {p99:.1f} ms over {len(samples.tags_ms)} requests")
    measured |= {"ttft_added_ms": round(max(added.values()), 2), "tags_p99_ms": round(p99, 2)}
    report("gateway", ratios, measured)


if __name__ == "__main__":
    main()

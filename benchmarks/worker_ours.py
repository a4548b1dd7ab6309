"""Our engine behind the same JSON lines as worker_llama.py. {"load": folder} names an FTW folder.

{"probe": true} answers with the read bandwidth of all threads in bytes per second, and with the
nanoseconds between the CPUs of two threads. A load with "hashed": false takes bytes as they come.
A load's answer waits until the weights are in own memory, which its seconds do not count, but with
"settle": false; {"resident": true} waits for it too.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.resident import resident_bytes
from ftengine.cache.policy.pages import pages_for
from ftengine.config import ComputeConfig, EngineConfig
from ftengine.device.torch_device import page_aligned
from ftengine.kernels.native import NativeKernels
from ftengine.loader.ftw import FtwModel
from ftengine.protocol import GenerateRequest
from ftengine.runtime import assemble
from ftengine.runtime.engine import Engine
from ftengine.runtime.runner import lone_sequence
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.sequence import Sequence

PROBE_BYTES = 1 << 30
STEP_TOKENS = 512


class _Unhashed(FtwModel):
    """The same folder, opened by its sizes alone."""

    @classmethod
    def open(cls, path: Path | str, check: str = "sizes") -> FtwModel:
        del check
        return FtwModel.open(path)


class Worker:
    """One loaded engine, driven on this thread."""

    def __init__(self, path: str, context: int, parallel: int, compute: ComputeConfig):
        config = EngineConfig(
            ftw=Path(path),
            context_tokens=context,
            num_parallel=parallel,
            prefix_cache=False,  # the same prompt is measured again and again
            compute=compute,
        )
        self.engine = Engine(config)
        self.engine.load()
        self.threads = compute.threads
        self.target = self.engine.info.kernels["target"]
        self._probed: torch.Tensor | None = None
        self._streams: list[Sequence] = []
        self._count = 0

    def prefill(self, ids: list[int]) -> float:
        """Seconds from the request to its first token."""
        started = time.perf_counter()
        self._run(ids, 1)
        return time.perf_counter() - started

    def decode(self, prompt: list[int], count: int) -> tuple[float, list[int]]:
        """Seconds for `count` greedy tokens after the first one that follows `prompt`."""
        result = self._run(prompt, count + 1)
        if result.finish is None or len(result.token_ids) <= count:
            raise RuntimeError(f"the model stopped early: {result}")
        return result.finish.decode_s, list(result.token_ids)

    def forced(self, prompt: list[int], ids: list[int]) -> float:
        """Seconds of one step per id, the ids being given: engine loop and sampling left out.

        A model of random weights that follows its own choices soon repeats itself, and with it its
        experts, which then come from the cache.
        """
        self.open_streams([prompt], len(ids))
        return self.together([ids])

    def open_streams(self, prompts: list[list[int]], room: int) -> None:
        """Evaluate prompts, one a stream, each with pages for `room` more tokens."""
        self._streams = []
        for number, prompt in enumerate(prompts):
            sequence = lone_sequence(list(prompt))
            count = pages_for(len(prompt) + room)
            sequence.pages = list(range(number * count, (number + 1) * count))
            sequence.state_slot = number
            for at in range(0, len(prompt), STEP_TOKENS):
                tokens = min(STEP_TOKENS, len(prompt) - at)
                self.engine.runner.run(Batch((Work(sequence, at, tokens, samples=False),)))
            self._streams.append(sequence)

    def together(self, ids: list[list[int]]) -> float:
        """Seconds of the steps that give each stream its ids, one a step, after its prompt."""
        for sequence, more in zip(self._streams, ids, strict=True):
            sequence.tokens[sequence.num_prompt :] = more
        run = self.engine.runner.run
        started = time.perf_counter()
        for step in range(len(ids[0])):
            work = (Work(s, s.num_prompt + step, 1, samples=True) for s in self._streams)
            run(Batch(tuple(work)))
        return time.perf_counter() - started

    def probe(self) -> dict[str, float]:
        """Read bandwidth of all threads, and the way from one CPU to the other."""
        kernels = NativeKernels.load(num_threads=self.threads, cpu_target=self.target)
        if self._probed is None:
            self._probed = page_aligned(PROBE_BYTES).fill_(1)
        data = self._probed
        kernels.stream_read(data)
        started = time.perf_counter()
        kernels.stream_read(data)
        rate = PROBE_BYTES / (time.perf_counter() - started)
        return {"bytes_per_s": rate, "hand_over_ns": kernels.hand_over_ns()}

    def _run(self, ids: list[int], count: int):  # type: ignore[no-untyped-def]
        self._count += 1
        request = GenerateRequest(f"b{self._count}", tuple(ids), max_tokens=count)
        return self.engine.generate_sync([request])[0]


def load(request: dict[str, Any]) -> tuple[Worker, dict[str, object]]:
    """A worker, and what is told of it. Units: seconds of the load, imports left out."""
    taken = FtwModel if request.get("hashed", True) else _Unhashed
    started = time.perf_counter()
    compute = ComputeConfig(
        threads=request["threads"],
        compute=request.get("compute", "bfloat16"),
        activations=request.get("activations", "auto"),
    )
    with mock.patch.object(assemble, "FtwModel", taken):
        worker = Worker(request["load"], request["context"], request.get("parallel", 1), compute)
    seconds = time.perf_counter() - started
    if request.get("settle", True):
        worker.engine.settle()
    info = worker.engine.info
    return worker, {"ready": info.kernels, "seconds": seconds, "vocab": info.vocab_size}


def answer(worker: Worker, request: dict[str, Any]) -> dict[str, object]:
    """One measurement."""
    if "probe" in request:
        return dict(worker.probe())
    if "prefill" in request:
        return {"seconds": worker.prefill(request["prefill"])}
    if "forced" in request:
        return {"seconds": worker.forced(request["prompt"], request["forced"])}
    if "open" in request:
        worker.open_streams(request["open"], request["room"])
        return {}
    if "together" in request:
        return {"seconds": worker.together(request["together"])}
    if "resident" in request:
        worker.engine.settle()
        return dict(resident_bytes())
    seconds, made = worker.decode(request["prompt"], request["decode"])
    return {"seconds": seconds, "tokens": made}


def main() -> None:
    """Serve requests until the exit line or the end of input."""
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            worker, reply = load(request)
        elif "exit" in request or worker is None:
            break
        else:
            reply = answer(worker, request)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()

"""Our engine behind the same JSON lines as worker_llama.py. {"load": folder} names an FTW folder.

{"probe": true} answers with the read bandwidth of all threads in bytes per second, and with the
nanoseconds between the CPUs of two threads.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from ftengine.config import ComputeConfig, EngineConfig
from ftengine.device.torch_device import page_aligned
from ftengine.kernels.native import NativeKernels
from ftengine.protocol import GenerateRequest
from ftengine.runtime.engine import Engine
from ftengine.runtime.runner import lone_sequence
from ftengine.scheduler.batch import Batch, Work

PROBE_BYTES = 1 << 30


class Worker:
    """One loaded engine, driven on this thread."""

    def __init__(self, path: str, threads: int, context: int, compute: str):
        config = EngineConfig(
            ftw=Path(path),
            context_tokens=context,
            prefix_cache=False,  # the same prompt is measured again and again
            compute=ComputeConfig(device="cpu", threads=threads, compute=compute),
        )
        self.engine = Engine(config)
        self.engine.load()
        self.threads = threads
        self.target = self.engine.info.kernels["target"]
        self._probed = page_aligned(PROBE_BYTES).fill_(1)
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
        tokens = [*prompt, *ids]
        sequence = lone_sequence(tokens)
        run = self.engine.runner.run
        step = 512
        for at in range(0, len(prompt), step):
            run(Batch((Work(sequence, at, min(step, len(prompt) - at), samples=False),)))
        started = time.perf_counter()
        for at in range(len(prompt), len(tokens)):
            run(Batch((Work(sequence, at, 1, samples=True),)))
        return time.perf_counter() - started

    def probe(self) -> dict[str, float]:
        """Read bandwidth of all threads, and the way from one CPU to the other."""
        kernels = NativeKernels.load(num_threads=self.threads, cpu_target=self.target)
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


def main() -> None:
    """Serve requests until the exit line or the end of input."""
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            worker = Worker(
                request["load"],
                request["threads"],
                request["context"],
                request.get("compute", "bfloat16"),
            )
            reply: dict[str, object] = {"ready": worker.engine.info.kernels}
        elif "exit" in request or worker is None:
            break
        elif "probe" in request:
            reply = dict(worker.probe())
        elif "prefill" in request:
            reply = {"seconds": worker.prefill(request["prefill"])}
        elif "forced" in request:
            reply = {"seconds": worker.forced(request["prompt"], request["forced"])}
        else:
            seconds, made = worker.decode(request["prompt"], request["decode"])
            reply = {"seconds": seconds, "tokens": made}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()

"""One llama.cpp engine behind five JSON lines; run by the Python that FT_PEER_PYTHON names.

Requests on stdin: {"load": path, "threads": n, "context": n}, {"decode": n, "prompt": ids},
{"prefill": ids}, {"exit": true}. Answers on stdout: {"ready": ...} or {"seconds": ...}.
"""

from __future__ import annotations

import json
import sys
import time

import llama_cpp
import numpy as np


class Worker:
    """Low-level calls only: no sampling code of the binding stands in the measured time."""

    def __init__(self, path: str, threads: int, context: int):
        self.model = llama_cpp.Llama(
            path,
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=512,
            n_ubatch=512,
            flash_attn=True,
            verbose=False,
            logits_all=False,
        )

    def prefill(self, ids: list[int]) -> float:
        """Seconds to evaluate a prompt from an empty cache, last logits included."""
        self.model.reset()
        started = time.perf_counter()
        self.model.eval(ids)
        return time.perf_counter() - started

    def decode(self, prompt: list[int], count: int) -> tuple[float, list[int]]:
        """Seconds for `count` greedy tokens after `prompt`, and the tokens."""
        self.prefill(prompt)
        made: list[int] = []
        started = time.perf_counter()
        for _ in range(count):
            logits = llama_cpp.llama_get_logits_ith(self.model.ctx, -1)
            row = np.ctypeslib.as_array(logits, shape=(self.model.n_vocab(),))
            token = int(row.argmax())
            made.append(token)
            self.model.eval([token])
        return time.perf_counter() - started, made

    def forced(self, prompt: list[int], ids: list[int]) -> float:
        """Seconds of one step per given id."""
        self.prefill(prompt)
        started = time.perf_counter()
        for token in ids:
            self.model.eval([token])
        return time.perf_counter() - started


def main() -> None:
    """Serve requests until the exit line."""
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            worker = Worker(request["load"], request["threads"], request["context"])
            reply: dict[str, object] = {
                "ready": llama_cpp.__version__,
                "vocab": worker.model.n_vocab(),
            }
        elif "exit" in request or worker is None:
            break
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

"""One llama.cpp engine behind five JSON lines; run by the Python that FT_PEER_PYTHON names.

Requests on stdin: {"load": path, "threads": n, "context": n, "repack": true}, {"decode": n,
"prompt": ids}, {"forced": ids, "prompt": ids}, {"prefill": ids}, {"turn": ids, "reply": ids},
{"exit": true}. Answers on stdout: {"ready": ...} or {"seconds": ...}.
"""

from __future__ import annotations

import json
import sys
import time

import llama_cpp
import numpy as np


class Worker:
    """Low-level calls only: no sampling code of the binding stands in the measured time."""

    def __init__(self, path: str, threads: int, context: int, repack: bool):
        if not repack:
            _load_without_repacking()
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

    def turn(self, ids: list[int], reply: list[int]) -> float:
        """Seconds to the first token of a turn, reusing what the last text began with.

        Afterwards `reply` is evaluated, so that the next turn finds it.
        """
        started = time.perf_counter()
        tokens = self.model.generate(ids, temp=0.0)
        next(iter(tokens))
        seconds = time.perf_counter() - started
        for token in reply:
            self.model.eval([token])
        return seconds

    def forced(self, prompt: list[int], ids: list[int]) -> float:
        """Seconds of one step per given id."""
        self.prefill(prompt)
        started = time.perf_counter()
        for token in ids:
            self.model.eval([token])
        return time.perf_counter() - started


def _load_without_repacking() -> None:
    """The binding has no argument for it."""
    low = llama_cpp.llama_cpp
    defaults = low.llama_model_default_params

    def plain():  # type: ignore[no-untyped-def]
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    low.llama_model_default_params = plain


def main() -> None:
    """Serve requests until the exit line."""
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            worker = Worker(
                request["load"],
                request["threads"],
                request["context"],
                request.get("repack", True),
            )
            reply: dict[str, object] = {
                "ready": llama_cpp.__version__,
                "vocab": worker.model.n_vocab(),
            }
        elif "exit" in request or worker is None:
            break
        elif "prefill" in request:
            reply = {"seconds": worker.prefill(request["prefill"])}
        elif "turn" in request:
            reply = {"seconds": worker.turn(request["turn"], request["reply"])}
        elif "forced" in request:
            reply = {"seconds": worker.forced(request["prompt"], request["forced"])}
        else:
            seconds, made = worker.decode(request["prompt"], request["decode"])
            reply = {"seconds": seconds, "tokens": made}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()

"""One llama.cpp engine behind five JSON lines; run by the Python that FT_PEER_PYTHON names.

Requests on stdin: {"load": path, "threads": n, "context": n, "repack": true}, {"decode": n,
"prompt": ids}, {"forced": ids, "prompt": ids}, {"prefill": ids}, {"turn": ids, "reply": ids},
{"open": prompts, "room": n} and then {"together": ids of each stream}, {"resident": true},
{"exit": true}. Answers on stdout: {"ready": ..., "seconds": of the load}, or {"seconds": ...}.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.resident import resident_bytes


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
        self.streams: Streams | None = None

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


class Streams:
    """Sequences that are decoded together: a context of their own over the loaded model.

    Each has its own part of the cache, as llama.cpp advises where texts share no beginning.
    """

    def __init__(self, model: llama_cpp.Llama, prompts: list[list[int]], room: int):
        parameters = model.context_params
        parameters.n_seq_max = len(prompts)
        parameters.n_ctx = len(prompts) * -(-(max(map(len, prompts)) + room) // 256) * 256
        parameters.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(model._model.model, parameters)
        if self._context is None:
            raise RuntimeError(f"llama.cpp makes no context for {len(prompts)} streams")
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        self._lengths = [len(prompt) for prompt in prompts]
        for number, prompt in enumerate(prompts):
            for start in range(0, len(prompt), 512):
                piece = prompt[start : start + 512]
                self._run([(token, start + at, number) for at, token in enumerate(piece)])

    def together(self, ids: list[list[int]]) -> float:
        """Seconds of the steps that give each stream its ids, one a step, after its prompt."""
        memory = llama_cpp.llama_get_memory(self._context)
        for number, length in enumerate(self._lengths):
            llama_cpp.llama_memory_seq_rm(memory, number, length, -1)
        started = time.perf_counter()
        for step in range(len(ids[0])):
            tokens = [(more[step], self._lengths[n] + step, n) for n, more in enumerate(ids)]
            self._run(tokens)
            llama_cpp.llama_get_logits(self._context)  # waits for the last row
        return time.perf_counter() - started

    def close(self) -> None:
        """Give the cache back."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)

    def _run(self, tokens: list[tuple[int, int, int]]) -> None:
        """Decode (token, position, stream) in one batch; of each the logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for at, (token, position, number) in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, position
            batch.seq_id[at][0], batch.n_seq_id[at] = number, 1
            batch.logits[at] = at == len(tokens) - 1 or number != tokens[at + 1][2]
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode ended with {status}")


def _load_without_repacking() -> None:
    """The binding has no argument for it."""
    low = llama_cpp.llama_cpp
    defaults = low.llama_model_default_params

    def plain():  # type: ignore[no-untyped-def]
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    low.llama_model_default_params = plain


def load(request: dict[str, Any]) -> tuple[Worker, dict[str, object]]:
    """A worker, and what is told of it. Units: seconds of the load, imports left out."""
    started = time.perf_counter()
    worker = Worker(
        request["load"], request["threads"], request["context"], request.get("repack", True)
    )
    seconds = time.perf_counter() - started
    version = llama_cpp.__version__
    return worker, {"ready": version, "seconds": seconds, "vocab": worker.model.n_vocab()}


def answer(worker: Worker, request: dict[str, Any]) -> dict[str, object]:
    """One measurement."""
    if "prefill" in request:
        return {"seconds": worker.prefill(request["prefill"])}
    if "turn" in request:
        return {"seconds": worker.turn(request["turn"], request["reply"])}
    if "forced" in request:
        return {"seconds": worker.forced(request["prompt"], request["forced"])}
    if "open" in request:
        if worker.streams is not None:
            worker.streams.close()
        worker.streams = Streams(worker.model, request["open"], request["room"])
        return {}
    if "together" in request:
        assert worker.streams is not None, "open comes first"
        return {"seconds": worker.streams.together(request["together"])}
    if "resident" in request:
        return dict(resident_bytes())
    seconds, made = worker.decode(request["prompt"], request["decode"])
    return {"seconds": seconds, "tokens": made}


def main() -> None:
    """Serve requests until the exit line."""
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

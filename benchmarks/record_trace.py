"""Record which experts a real model asks for: `python -m benchmarks.record_trace FTW OUT [PROMPT]`.

The model answers on the CPU engine; every router's choice is noted on the way. The file is JSON
lines (ftengine/experts/traces.py) and goes to `benchmarks.expert_traffic --trace OUT`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.real_model import chat
from ftengine.config import ComputeConfig, EngineConfig
from ftengine.experts.traces import Token, Trace, write_trace
from ftengine.layers.moe import Moe
from ftengine.layers.router import Router
from ftengine.protocol import GenerateRequest
from ftengine.runtime.engine import Engine

PROMPT = "Explain how a sailing boat can move against the wind, and what the keel is for."
STEPS = 500


class RecordingRouter:
    """A router that notes what it chose. Shape of one note: tokens of a step, then experts."""

    def __init__(self, router: Router):
        self._router = router
        self.num_experts = router.num_experts
        self.num_experts_per_tok = router.num_experts_per_tok
        self.notes: list[list[list[int]]] = []

    def choose(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        """Choose as always, and remember."""
        self._router.choose(x, logits, expert_ids, weights)
        self.notes.append(expert_ids.tolist())


def record(engine: Engine, ids: list[int], steps: int, source: str) -> Trace:
    """Answer one prompt of at most one step's tokens, ignoring the end, and return the trace."""
    decoder = engine.runner._decoder
    routers: list[RecordingRouter] = []
    layers = []
    for layer in decoder.layers:
        feed_forward = layer.feed_forward
        if isinstance(feed_forward, Moe):
            router = RecordingRouter(feed_forward.router)
            routers.append(router)
            feed_forward = replace(feed_forward, router=router)
        layers.append(replace(layer, feed_forward=feed_forward))
    engine.runner._decoder = replace(decoder, layers=tuple(layers))
    stops = tuple((token, -100.0) for token in sorted(engine.scheduler._eos_ids))
    sampling = replace(GenerateRequest("s", (0,)).sampling, logit_bias=stops, repeat_penalty=1.1)
    engine.generate_sync([GenerateRequest("trace", tuple(ids), sampling, max_tokens=steps + 1)])
    # The last layer of a prompt runs for its last token only: that one's choice stands for all.
    prompt = [_token(routers, 0, index) for index in range(len(ids))]
    made = [_token(routers, step, 0) for step in range(1, steps + 1)]
    first = routers[0]
    return Trace(
        len(routers),
        first.num_experts,
        first.num_experts_per_tok,
        tuple(prompt),
        tuple(made),
        source,
    )


def _token(routers: list[RecordingRouter], step: int, index: int) -> Token:
    return tuple(
        tuple(router.notes[step][min(index, len(router.notes[step]) - 1)]) for router in routers
    )


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ftw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    engine = Engine(EngineConfig(given.ftw, 2048, compute=ComputeConfig(compute="float32")))
    engine.load()
    ids = Tokenizer.from_file(str(given.ftw / "tokenizer.json")).encode(chat(given.prompt)).ids
    trace = record(engine, ids, given.steps, f"recorded from {engine.info.family}")
    with given.out.open("w") as stream:
        write_trace(trace, stream)
    print(json.dumps({"steps": len(trace.steps), "layers": trace.num_layers}))


if __name__ == "__main__":
    main()

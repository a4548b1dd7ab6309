"""Sections of gpu_check with the whole engine: a converted model in, tokens out, nothing played.

The model has a few layers of Qwen3.6-35B-A3B at their real sizes, with the whole vocabulary, and
random weights: its times are those of so many layers, not of the model. Its slots are the part of
its experts that a budget leaves to the real one. Not yet run on a GPU.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.convert.local import convert_folder
from ftengine.errors import EngineError
from ftengine.protocol import GenerateRequest, MemoryRequest, Sampling, TokenLogprob
from ftengine.runtime.engine import Engine
from ftengine.runtime.outcomes import Result
from tests.fakes.qwen_shaped import build_qwen

TOLERANCE = 0.1
"""Of a log probability: sums in another order, activations in bfloat16."""
_GREEDY = Sampling(temperature=0)
_STRATEGIES = ("split", "fetch", "cpu")


@dataclass(frozen=True)
class EngineSize:
    """What the model is and how much is asked of it; smaller in the tests.

    slot_share: of all experts. 8 GB hold 5.2 GB of Qwen3.6-35B beside experts, some context and
    work memory, and about 1 in 8 of its experts.
    """

    layers: int = 4
    changes: Mapping[str, Any] = field(default_factory=dict)
    slot_share: float = 0.125
    compute: str = "bfloat16"
    context_tokens: int = 4096
    prompt_tokens: int = 128
    decode_tokens: int = 64
    prefill_tokens: int = 2048


@dataclass
class EngineSections:
    """The model is made when the first section asks for it. work: a folder for it."""

    work: Path
    size: EngineSize = EngineSize()
    device: str = "gpu"

    @property
    def sections(self) -> dict[str, Callable[[], Mapping[str, Any]]]:
        """By name, in order of value."""
        return {
            "engine_model": self.model,
            "engine_tokens": self.tokens,
            "engine_decode": self.decode,
            "engine_prefill": self.prefill,
            "engine_resizes": self.resizes,
        }

    def close(self) -> None:
        """Remove the model."""
        shutil.rmtree(self.work, ignore_errors=True)

    def model(self) -> Mapping[str, Any]:
        """Write the checkpoint and convert it."""
        started = time.monotonic()
        source = build_qwen(self.work / "hub", self.size.layers, **self.size.changes)
        written = time.monotonic()
        convert_folder(source, self._folder)
        shutil.rmtree(source)
        found = {"write_s": written - started, "convert_s": time.monotonic() - written}
        return {"layers": self.size.layers, **{key: round(s, 1) for key, s in found.items()}}

    def tokens(self) -> Mapping[str, Any]:
        """Log probabilities and greedy tokens of each strategy against the CPU's."""
        with self._engine("", device="cpu") as engine:
            wanted = self._answer(engine, prompt_logprobs=True)
        found: dict[str, Any] = {}
        for strategy in _STRATEGIES:
            with self._engine(strategy) as engine:
                got = self._answer(engine, prompt_logprobs=True)
                step = engine.info.kernels["step"]
            same = _same_tokens(got, wanted)
            error = _error(_prompt_pairs(got, wanted) + _decode_pairs(got, wanted, same))
            found[strategy] = {"error": error, "same_tokens": same, "step": step}
            if not error < TOLERANCE:
                raise EngineError(f"{strategy}: a log probability is off by {error}")
        return {**found, "of_tokens": len(wanted.token_ids)}

    def decode(self) -> Mapping[str, Any]:
        """Tokens per second of one sequence, per strategy."""
        found: dict[str, Any] = {}
        for strategy in ("resident", *_STRATEGIES):
            with self._engine(strategy) as engine:
                self._answer(engine)  # the cache fills
                before = engine.info.experts
                finish = self._answer(engine).finish
                assert finish is not None
                rate = (finish.completion_tokens - 1) / finish.decode_s
                found[strategy] = {"tokens_per_s": rate, "step": engine.info.kernels["step"]}
                after = engine.info.experts
                if before is not None and after is not None:
                    found[strategy]["hits"] = after.hits - before.hits
                    found[strategy]["misses"] = after.misses - before.misses
        pure = max(found[name]["tokens_per_s"] for name in ("fetch", "cpu"))
        return {**found, "split_over_better_pure": found["split"]["tokens_per_s"] / pure}

    def prefill(self) -> Mapping[str, Any]:
        """Tokens per second of a prompt, second of two, nothing reused."""
        size = self.size
        found = {}
        for strategy in ("resident", "split"):
            with self._engine(strategy) as engine:
                for seed in (1, 2):
                    prompt = self._prompt(size.prefill_tokens, seed)
                    (result,) = engine.generate_sync([GenerateRequest("p", prompt, max_tokens=1)])
                finish = _finish(result)
                found[f"{strategy}_tokens_per_s"] = size.prefill_tokens / finish.prefill_s
        return found

    def resizes(self) -> Mapping[str, Any]:
        """Slots made anew three times under a running request: the same tokens; memory returns."""
        with self._engine("fetch") as engine:
            wanted = self._answer(engine)
        slots = self._slots
        with self._engine("fetch") as engine:
            changes = [slots, 2 * slots, max(slots // 2, self._least_slots)]
            step = engine.step

            def stepping() -> bool:
                if changes:
                    engine.resize_sync(MemoryRequest(expert_slots=changes.pop()))
                return step()

            with mock.patch.object(engine, "step", stepping):
                got = self._answer(engine)
        if got.token_ids != wanted.token_ids:
            raise EngineError("resizes under load changed the tokens")
        return {"resizes": 3, "tokens": len(got.token_ids)}

    @property
    def _folder(self) -> Path:
        return self.work / "ftw"

    @property
    def _config(self) -> Mapping[str, Any]:
        return {"num_experts": 256, "num_experts_per_tok": 8, **self.size.changes}

    @property
    def _least_slots(self) -> int:
        return 2 * int(self._config["num_experts_per_tok"])

    @property
    def _slots(self) -> int:
        experts = self.size.layers * int(self._config["num_experts"])
        return max(int(experts * self.size.slot_share), self._least_slots)

    @contextmanager
    def _engine(self, strategy: str, device: str = "") -> Iterator[Engine]:
        size, slots = self.size, 0 if strategy in ("", "cpu", "resident") else self._slots
        where = device or self.device
        compute = ComputeConfig(device=where, strategy=strategy, compute=size.compute)
        memory = MemoryConfig(expert_slots=slots)
        engine = Engine(EngineConfig(self._folder, size.context_tokens, 1, 512,
                                     compute=compute, memory=memory))  # fmt: skip
        # An engine makes its own stream torch's; the sections after this one want theirs back.
        stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
        try:
            engine.load()
            yield engine
        finally:
            engine.close()
            if stream is not None:
                torch.cuda.set_stream(stream)

    def _answer(self, engine: Engine, prompt_logprobs: bool = False) -> Result:
        size = self.size
        request = GenerateRequest(
            "r",
            self._prompt(size.prompt_tokens, 0),
            _GREEDY,
            max_tokens=size.decode_tokens,
            logprobs=0,
            prompt_logprobs=prompt_logprobs,
        )
        (result,) = engine.generate_sync([request])
        _finish(result)
        return result

    def _prompt(self, count: int, seed: int) -> tuple[int, ...]:
        vocab_size = int(self.size.changes.get("vocab_size", 248320))
        drawn = np.random.default_rng(seed).integers(3, vocab_size, count)
        return tuple(int(token) for token in drawn)


def _finish(result: Result) -> Any:
    if result.finish is None:
        raise EngineError(f"a request failed: {result.error}")
    return result.finish


def _same_tokens(got: Result, wanted: Result) -> int:
    """How many tokens are equal before the first that is not."""
    pairs = zip(got.token_ids, wanted.token_ids, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(wanted.token_ids))


def _prompt_pairs(got: Result, wanted: Result) -> list[tuple[TokenLogprob, TokenLogprob]]:
    mine, theirs = _finish(got).prompt_logprobs, _finish(wanted).prompt_logprobs
    pairs = zip(mine, theirs, strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _decode_pairs(
    got: Result, wanted: Result, same: int
) -> list[tuple[TokenLogprob, TokenLogprob]]:
    return list(zip(got.logprobs[:same], wanted.logprobs[:same], strict=True))


def _error(pairs: list[tuple[TokenLogprob, TokenLogprob]]) -> float:
    """The largest difference; not a number where one of them is not."""
    return float(np.max([abs(a.logprob - b.logprob) for a, b in pairs]))
